"""Evaluation of a potential on sets of labelled frames."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from torchmdx.datasets.frames import Frames
from torchmdx.datasets.store import Store
from torchmdx.evaluation.derivatives import evaluate
from torchmdx.models.ensemble import Ensemble, members_of
from torchmdx.models.potential import Potential
from torchmdx.report.errors import Errors
from torchmdx.report.hints import hints
from torchmdx.report.predictions import Predictions, pack
from torchmdx.report.predictor import Predictor
from torchmdx.report.scales import Scales
from torchmdx.report.verdict import verdict

Sets = Mapping[str, tuple[Store, np.ndarray]]  # by name: a store, and indices of frames in it


@dataclass(frozen=True, eq=False)
class EvaluatedSets:
    """Errors of a potential or an ensemble, in a precision on a device, on each set that has frames.

    Attributes:
        trained: Elements that the potential, or every member, was trained on, None if unknown.
    """

    potential: Potential | Ensemble
    stores: dict[str, Store]
    errors: dict[str, Errors]
    device: torch.device
    dtype: torch.dtype
    trained: tuple[int, ...] | None = None

    def verdicts(self, scales: Scales) -> list[str]:
        """A verdict on the test set, else the validation set, of a split; else on each set."""
        held_out = [name for name in ("test", "validation") if name in self.errors]
        shown = (
            held_out[:1] if held_out and self.errors.keys() <= {"train", "validation", "test"} else list(self.errors)
        )
        alone = len(self.errors) == 1
        return [("" if alone else f"{name}: ") + verdict(self.errors[name], scales) for name in shown]

    def hints(self) -> list[str]:
        """Remarks on the errors; see `torchmdx.report.hints`."""
        references = reference_energies(self.potential).tolist()
        return [
            f"{name}: {hint}" if len(self.errors) > 1 else hint
            for name, errors in self.errors.items()
            for hint in hints(errors, references, self.trained)
        ]


def reference_energies(potential: Potential | Ensemble) -> np.ndarray:
    """Reference energies [max_z+1] of the elements, eV; means over the members of an ensemble."""
    found: np.ndarray = np.mean([member.reference_energies.cpu().numpy() for member in members_of(potential)], axis=0)
    return found


def _trained(potential: Potential | Ensemble) -> tuple[int, ...] | None:
    """Elements that every member was trained on; None if a member does not know."""
    known = [member.card.elements for member in members_of(potential)]
    found = [set(elements) for elements in known if elements is not None]
    return tuple(sorted(set.intersection(*found))) if len(found) == len(known) else None


def evaluate_sets(
    potential: Potential | Ensemble,
    sets: Sets,
    *,
    device: torch.device | str,
    dtype: torch.dtype,
    stress: bool | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    take: Callable[[str, Store, Predictions], None] | None = None,
) -> EvaluatedSets:
    """Predicts every frame, a batch at a time.

    Args:
        stress: As for `Predictor.parts`.
        progress: Called with the set's name, frames done and all of them.
        take: Called with the set's name, its store, and each batch of predictions.

    Raises:
        ValueError: If there is no frame at all, and what `Predictor.parts` raises.
    """
    sets = {name: (store, indices) for name, (store, indices) in sets.items() if len(indices)}
    if not sets:
        raise ValueError("there must be a frame to evaluate, got none")
    predictor = Predictor(potential, device=device, dtype=dtype)
    for store, indices in sets.values():  # before the first set, which may take hours
        predictor.require_elements(store, indices)
    references = reference_energies(potential)
    found = {}
    for name, (store, indices) in sets.items():

        def advanced(done: int, number: int, name: str = name) -> None:
            if progress is not None:
                progress(name, done, number)

        found[name] = errors = Errors(references)
        for part in predictor.parts(store, indices, stress=stress, progress=advanced):
            errors.add(part)
            add_charges(errors, predictor.potential, part.frames)
            if take is not None:
                take(name, store, part)
    stores = {name: store for name, (store, _) in sets.items()}
    return EvaluatedSets(predictor.potential, stores, found, predictor.potential.device, dtype, _trained(potential))


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
