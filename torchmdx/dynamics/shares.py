"""Shares of a run on several devices: consecutive structures of snapshots and restraints."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from torchmdx.dynamics.device_process import Arrays
from torchmdx.dynamics.particles import Particles
from torchmdx.dynamics.restraints import Position, Restraint
from torchmdx.dynamics.snapshot import Snapshot

FRAMES = ("frame", "fast_frame")


def joined(parts: list[Arrays], first_atoms: list[int], particles: Particles) -> Snapshot:
    """One snapshot of those of all shares, which begin at these atoms."""
    found: Arrays = {}
    for name, first in parts[0].items():
        values = [part[name] for part in parts]
        if name in FRAMES and first is not None:
            orders = zip(values, first_atoms, strict=True)
            found[name] = {
                "order": np.concatenate([value["order"] + start for value, start in orders]),
                "images": np.concatenate([value["images"] for value in values]),
                "origin": np.concatenate([value["origin"] for value in values]),
                "far": min((value["far"] for value in values), key=float),
            }
        else:
            found[name] = first if np.ndim(first) == 0 else np.concatenate(values)
    return Snapshot(**found, particles=particles)


def cut(everything: Arrays, atoms: slice, systems: slice, num_atoms: int) -> Arrays:
    """The part of a share: the fields of a snapshot of these atoms and structures."""
    own: Arrays = {}
    for name, value in everything.items():
        if name in FRAMES and value is not None:
            own[name] = {
                "order": value["order"][atoms] - atoms.start,  # atoms are ordered within their structures
                "images": value["images"][atoms],
                "origin": value["origin"][systems],
                "far": value["far"],
            }
        elif np.ndim(value) == 0:
            own[name] = value
        else:
            own[name] = value[atoms if len(value) == num_atoms else systems]
    return own


def share_of(restraint: Restraint, systems: slice) -> Restraint:
    """A restraint of some of the structures: of values for each of them, those."""
    changed: dict[str, Any] = {}
    for name, dimensions in (("stiffness", 1), ("reference", 3 if isinstance(restraint, Position) else 1)):
        value = getattr(restraint, name)
        if value is not None and np.ndim(value) == dimensions:
            changed[name] = np.asarray(value)[systems]
    return replace(restraint, **changed)
