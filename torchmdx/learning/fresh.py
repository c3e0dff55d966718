"""Errors of a potential on labels that it has not seen: those of a round, before they are trained on."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from torchmdx.datasets.store import Store
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.report.evaluation import evaluate_sets
from torchmdx.report.predictions import Predictions


def errors_on(potential: Potential | Ensemble, store: Store, labelled: Path, controls: list[int]) -> dict[str, Any]:
    """Errors on the frames of a store: of all, of those drawn at random, and of each frame.

    Args:
        labelled: The labelled file, whose origins name the place of each frame among those that were chosen.
        controls: Places of the frames that were drawn at random.

    Returns:
        `all` and `random` (None without any) with energy_rmse and energy_mae (eV/atom), force_rmse and force_mae
        (eV/Å, of components), and ratio: of an ensemble the root mean square of the largest force errors of frames over
        that of their spreads, of a single potential that of the energy errors over that of their uncertainties;
        `frames`: place, energy error (eV/atom), largest force error (eV/Å) of each frame.
    """
    places = origins(labelled)
    frames: list[dict[str, Any]] = []

    def take(name: str, store: Store, part: Predictions) -> None:
        starts = part.frames.offsets
        of_energy, spreads = part.energy_uncertainty, part.forces_spread
        differences = part.forces - part.frames.forces.astype(np.float64)
        for k, index in enumerate(part.indices.tolist()):
            own = differences[int(starts[k]) : int(starts[k + 1])]
            energy = float(part.energy[k] - part.frames.energy[k]) / len(own)
            largest = float(np.linalg.norm(own, axis=1).max())
            uncertain = math.nan if of_energy is None else float(of_energy[k])
            if spreads is not None:
                uncertain = float(spreads[int(starts[k]) : int(starts[k + 1])].max())
            frames.append(
                {
                    "place": places[store.origin(index)[1]],
                    "energy_error": energy,
                    "force_error": largest,
                    "error": abs(energy) * len(own) if spreads is None else largest,
                    "uncertainty": uncertain,
                    "squares": float((own**2).sum()),
                    "sizes": float(np.abs(own).sum()),
                    "components": own.size,
                }
            )

    sets = {"fresh": (store, np.arange(len(store)))}
    evaluate_sets(potential, sets, device=potential.device, dtype=potential.dtype, stress=False, take=take)
    frames.sort(key=lambda one: int(one["place"]))
    drawn = [one for one in frames if one["place"] in controls]
    shown = [{name: one[name] for name in ("place", "energy_error", "force_error")} for one in frames]
    return {"all": _summary(frames), "random": _summary(drawn) if drawn else None, "frames": shown}


def _summary(frames: list[dict[str, Any]]) -> dict[str, float | None]:
    energies = np.array([one["energy_error"] for one in frames])
    components = sum(one["components"] for one in frames)
    errors, uncertain = (np.array([one[name] for one in frames]) for name in ("error", "uncertainty"))
    spread = float(np.sqrt((uncertain**2).mean()))
    return {
        "frames": len(frames),
        "energy_rmse": float(np.sqrt((energies**2).mean())),
        "energy_mae": float(np.abs(energies).mean()),
        "force_rmse": math.sqrt(sum(one["squares"] for one in frames) / components),
        "force_mae": sum(one["sizes"] for one in frames) / components,
        "ratio": float(np.sqrt((errors**2).mean())) / spread if spread > 0 else None,
    }


def origins(labelled: Path) -> list[int]:
    """The place of each frame of a labelled file in the file that was labelled."""
    from ase.io import iread

    return [int(str(atoms.info["origin"]).rpartition(":")[2]) for atoms in iread(labelled, index=":")]
