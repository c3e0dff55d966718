"""Evaluation of a potential on sets of labelled frames."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from torchmdx.datasets.store import Store
from torchmdx.models.potential import Potential
from torchmdx.report.charge_errors import add_charges
from torchmdx.report.errors import Errors
from torchmdx.report.hints import hints
from torchmdx.report.predict import Predictor

Sets = Mapping[str, tuple[Store, np.ndarray]]  # by name: a store, and indices of frames in it


@dataclass(frozen=True, eq=False)
class EvaluatedSets:
    """Errors of a potential, in a precision on a device, on each set that has frames.

    trained: elements that the potential was trained on, None if unknown.
    """

    potential: Potential
    stores: dict[str, Store]
    errors: dict[str, Errors]
    device: torch.device
    dtype: torch.dtype
    trained: tuple[int, ...] | None = None

    def hints(self) -> list[str]:
        """Remarks on the errors; see `torchmdx.report.hints`."""
        references = self.potential.reference_energies.tolist()
        return [
            f"{name}: {hint}" if len(self.errors) > 1 else hint
            for name, errors in self.errors.items()
            for hint in hints(errors, references, self.trained)
        ]


def evaluate_sets(
    potential: Potential,
    sets: Sets,
    *,
    device: torch.device | str,
    dtype: torch.dtype,
    progress: Callable[[str, int, int], None] | None = None,
) -> EvaluatedSets:
    """Predicts every frame, a batch at a time.

    progress: called with the set's name, frames done and all of them. Raises ValueError if there is no frame at all,
    and what `Predictor.parts` raises.
    """
    sets = {name: (store, indices) for name, (store, indices) in sets.items() if len(indices)}
    if not sets:
        raise ValueError("there must be a frame to evaluate, got none")
    predictor = Predictor(potential, device=device, dtype=dtype)
    for store, indices in sets.values():  # before the first set, which may take hours
        predictor.require_elements(store, indices)
    references = potential.reference_energies.cpu().numpy()
    found = {}
    for name, (store, indices) in sets.items():

        def advanced(done: int, number: int, name: str = name) -> None:
            if progress is not None:
                progress(name, done, number)

        found[name] = errors = Errors(references)
        for part in predictor.parts(store, indices, progress=advanced):
            errors.add(part)
            add_charges(errors, predictor.potential, part.frames)
    stores = {name: store for name, (store, _) in sets.items()}
    return EvaluatedSets(predictor.potential, stores, found, predictor.potential.device, dtype, potential.card.elements)
