"""Errors of partial charges and dipole moments, of potentials that predict charges."""

from __future__ import annotations

import numpy as np
import torch

from torchmdx.datasets.frames import Frames
from torchmdx.evaluation.derivatives import evaluate
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.report.errors import Errors
from torchmdx.report.predictor import pack

MOST_ATOMS = 512  # per evaluation with the exact model


def add_charges(errors: Errors, potential: Potential | Ensemble, frames: Frames) -> None:
    """Adds errors of the frames that have such labels; none for potentials without charges."""
    labelled = np.flatnonzero(frames.has("charges") | frames.has("dipole"))
    members = list(potential) if isinstance(potential, Ensemble) else [potential]
    if not len(labelled) or not all(member.predicts_charges for member in members):
        return
    ends = np.cumsum(frames.counts[labelled])
    for number in range(int(ends[-1]) // MOST_ATOMS + 1):
        chosen = labelled[ends // MOST_ATOMS == number]
        if len(chosen):
            _add(errors, potential, frames.take(chosen))


def _add(errors: Errors, potential: Potential | Ensemble, frames: Frames) -> None:
    with torch.no_grad():
        found = evaluate(potential, pack(frames, frames.num_atoms, len(frames), 0.0), forces=False)
    assert found.charges is not None
    assert found.dipoles is not None
    charges = found.charges.cpu().numpy() - frames.charges
    dipoles = found.dipoles.cpu().numpy() - frames.dipole
    errors.charges.add(charges[np.isfinite(charges)])
    errors.dipole.add(dipoles[np.isfinite(dipoles).all(1)])
