"""Errors of partial charges and dipole moments."""

import numpy as np
import pytest
import torch
from ase.build import bulk, molecule

from torchmdx import Potential, TensorNetConfig, evaluate
from torchmdx.datasets.frames import Frames
from torchmdx.datasets.store import Store, StoreWriter
from torchmdx.models.tensornet2 import TensorNet2Config
from torchmdx.report.evaluation import evaluate_sets
from torchmdx.report.scales import MILLI_EV
from torchmdx.report.tables import summary

SIZES = dict(num_channels=8, num_layers=1, num_radial=8, cutoff=4.0)


@pytest.fixture
def frames():
    """Molecules with charges and dipole moments, one without a dipole, and a crystal, which has none."""
    generator, made = np.random.default_rng(0), []
    for name in ("H2O", "CH4", "NH3"):
        atoms = molecule(name)
        labels = {"charges": generator.normal(size=len(atoms)), "dipole": generator.normal(size=3)}
        if name == "CH4":
            del labels["dipole"]
        made.append(Frames.single(atoms.positions, atoms.numbers, energy=0.0, **labels))
    salt = bulk("NaCl", "rocksalt", a=5.6)
    cell = dict(cell=salt.cell.array, pbc=salt.pbc)
    made.append(Frames.single(salt.positions, salt.numbers, energy=0.0, charges=np.array([1.0, -1.0]), **cell))
    return made


def evaluated(potential, frames, path):
    with StoreWriter(path) as writer:
        for index, frame in enumerate(frames):
            writer.add(frame, "x", index)
    sets = {"all": (Store.open(path), np.arange(len(frames)))}
    return evaluate_sets(potential, sets, device="cpu", dtype=torch.float64)


def test_errors_are_those_of_frames_evaluated_one_by_one(frames, tmp_path, monkeypatch):
    monkeypatch.setattr("torchmdx.report.evaluation.MOST_ATOMS", 6)
    torch.manual_seed(0)
    potential = Potential(TensorNet2Config(num_charges=2, **SIZES)).double()
    found = evaluated(potential, frames, tmp_path / "st").errors["all"]
    results = [evaluate(potential, frame.system(0)) for frame in frames]
    charges = np.concatenate([r.charges.numpy() - f.charges for r, f in zip(results, frames, strict=True)])
    dipoles = np.concatenate([(results[k].dipoles.numpy() - frames[k].dipole).ravel() for k in (0, 2)])
    assert found.charges.count == len(charges)
    assert found.charges.mae == pytest.approx(np.abs(charges).mean(), rel=1e-6)
    assert found.dipole.rmse == pytest.approx((dipoles**2).mean() ** 0.5, rel=1e-6)
    heads = [row[0] for row in summary({"all": found}, MILLI_EV).rows if len(row) == 1]
    assert {"Partial charges / me", "Dipole moments, by component / me Å"} <= set(heads)
    assert found.summary()["charges"]["mae"] == pytest.approx(1000 * np.abs(charges).mean(), rel=1e-6)


def test_a_potential_without_charges_has_no_such_errors(frames, tmp_path):
    found = evaluated(Potential(TensorNetConfig(**SIZES)).double(), frames[:3], tmp_path / "st").errors["all"]
    assert (found.charges.count, found.dipole.count) == (0, 0)
    assert "charges" not in found.summary()
