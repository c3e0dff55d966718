"""Errors on fresh labels: against the potential and the labels themselves."""

import numpy as np
import pytest
from ase.io import read

from torchmdx import evaluate, load
from torchmdx.learning.stage import read_json
from torchmdx.structures.system import System


def test_errors_are_those_of_the_potential_before_the_labels(finished):
    _, folder, _ = finished
    potential = load(folder / "round-000" / "train" / "potential.safetensors")
    found = read_json(folder / "round-001" / "label" / "done.json")["result"]["errors"]
    frames = read(folder / "round-001" / "label" / "labelled.extxyz", index=":")
    energies, forces, spreads = [], [], []
    for atoms in frames:
        result = evaluate(potential, System.from_ase(atoms))
        energies.append((float(result.energy[0]) - atoms.get_potential_energy()) / len(atoms))
        forces.append(result.forces.numpy() - atoms.get_forces())
        spreads.append(float(result.force_spread.max()))
    largest = [float(np.linalg.norm(one, axis=1).max()) for one in forces]
    assert [one["place"] for one in found["frames"]] == [0, 1, 2]
    np.testing.assert_allclose([one["energy_error"] for one in found["frames"]], energies, rtol=1e-3)
    np.testing.assert_allclose([one["force_error"] for one in found["frames"]], largest, rtol=1e-3)
    every = np.concatenate(forces)
    assert found["all"]["force_rmse"] == pytest.approx(np.sqrt((every**2).mean()), rel=1e-3)
    assert found["all"]["force_mae"] == pytest.approx(np.abs(every).mean(), rel=1e-3)
    assert found["all"]["energy_rmse"] == pytest.approx(np.sqrt(np.mean(np.square(energies))), rel=1e-3)
    ratio = np.sqrt(np.mean(np.square(largest)) / np.mean(np.square(spreads)))
    assert found["all"]["ratio"] == pytest.approx(ratio, rel=1e-2)
    # The first frame was drawn at random.
    assert found["random"]["frames"] == 1
    assert found["random"]["force_rmse"] == pytest.approx(np.sqrt((forces[0] ** 2).mean()), rel=1e-3)
