"""Potentials given to an interface, in memory or as files, one or several: loaded or copied for evaluation."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from torchmdx.checkpoints.save_load import load, load_one, of_head
from torchmdx.models.coulomb_cutoff import with_coulomb_cutoff
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.runtime.fork_guard import check_fork
from torchmdx.runtime.precisions import PRECISIONS, require_precision

DTYPES = {name: getattr(torch, name) for name in PRECISIONS}
# Names of others, and those of torch and NumPy, of the same precisions.
OTHER_NAMES = {"torch.float32": "float32", "torch.float64": "float64", "double": "float64", "single": "float32"}


def dtype_named(dtype: Any) -> str:
    """A key of DTYPES for a dtype by name, of torch or of NumPy. Raises ValueError."""
    text = dtype.__name__ if isinstance(dtype, type) else str(dtype)
    return require_precision(OTHER_NAMES.get(text, text), "dtype")


# None: the default potential.
PotentialSource = Potential | Ensemble | str | Path | Sequence[Potential | str | Path] | None


def prepare_potential(
    potential: PotentialSource,
    dtype: torch.dtype,
    device: torch.device | str,
    coulomb_cutoff: float | None = None,
    coulomb: str | None = None,
    coulomb_accuracy: float | None = None,
    head: str | None = None,
) -> Potential | Ensemble:
    """A potential or an ensemble with a dtype and on a device: loaded from a file, or a copy of the one given.

    A list of potentials or paths becomes an ensemble. coulomb_cutoff, coulomb, coulomb_accuracy, head: as for
    `load`.

    Raises:
        TypeError: For anything else, and as `load`.
    """
    prepared = _prepared(chosen_head(potential, head), dtype, device)
    return with_coulomb_cutoff(prepared, coulomb_cutoff, coulomb, coulomb_accuracy)


def chosen_head(potential: PotentialSource, head: str | None) -> PotentialSource:
    """The files of a potential as FILE:NAME. Raises ValueError for a potential in memory, which has one head."""
    several = potential if isinstance(potential, (list, tuple)) else [potential]
    if head is not None and any(isinstance(one, (Potential, Ensemble)) for one in several):
        raise ValueError(f"head chooses from a file with several, got {head!r} and a potential in memory")
    return of_head(potential, head)  # type: ignore[arg-type, return-value]


def _prepared(potential: PotentialSource, dtype: torch.dtype, device: torch.device | str) -> Potential | Ensemble:
    check_fork(torch.device(device))
    if isinstance(potential, (Potential, Ensemble)):
        return copy.deepcopy(potential).to(device=device, dtype=dtype).eval().requires_grad_(False)
    if potential is None or isinstance(potential, (str, Path)):
        return load(potential, dtype=dtype, device=device)
    if isinstance(potential, (list, tuple)):
        names = [str(part) if isinstance(part, (str, Path)) else f"member {k}" for k, part in enumerate(potential)]
        return Ensemble([_member(part, dtype, device) for part in potential], names)
    raise TypeError(f"potential must be a Potential or a path, got {type(potential).__name__}")


def _member(part: Any, dtype: torch.dtype, device: torch.device | str) -> Potential:
    if isinstance(part, (str, Path)):
        return load_one(part, dtype=dtype, device=device)
    if not isinstance(part, Potential):
        raise TypeError(f"each member of an ensemble must be a Potential or a path, got {type(part).__name__}")
    return copy.deepcopy(part).to(device=device, dtype=dtype).eval().requires_grad_(False)
