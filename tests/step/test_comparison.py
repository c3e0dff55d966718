"""Comparison of results: what is seen, and how large a difference is allowed."""

import math
import re

import pytest
import torch

from torchmdx import Batch, System
from torchmdx.step.comparison import compare_atoms, compare_sums, compare_systems, relative_error

CELL = [[4.0, 0, 0], [0, 5, 0], [0, 0, 5]]  # 100 Å³


@pytest.fixture
def batch():
    crystal = System.create([[0.0, 0, 0], [2, 0, 0]], [1, 1], CELL, True)
    return Batch.of([crystal, System.create([[0.0, 0, 0], [1, 0, 0]], [1, 1]), System.create([], [])])


@pytest.fixture
def results():
    """Forces of 1 eV/Å on each atom, and a virial of 6 eV."""
    forces = torch.tensor([[1.0, 0, 0], [-1, 0, 0], [0, 0, 1], [0, 0, -1]], dtype=torch.float64)
    stress = torch.full((3, 3, 3), torch.nan, dtype=torch.float64)
    stress[0] = 0.02
    return {
        "energy": torch.tensor([-3.0, 5.0, 0.0], dtype=torch.float64),
        "energy_spread": torch.zeros(3, dtype=torch.float64),
        "forces": forces,
        "force_spread": torch.full((4,), 0.1, dtype=torch.float64),
        "energies": torch.tensor([-1.0, -2.0, 2.0, 3.0], dtype=torch.float64),
        "stress": stress,
    }


def test_relative_errors_have_a_floor():
    exact = torch.tensor([[3.0, 0, 4.0], [0, 0, 0]], dtype=torch.float64)
    assert relative_error(exact * 1.1, exact) == pytest.approx(0.1)
    still = torch.zeros(4, 3, dtype=torch.float64)
    assert relative_error(still + 1e-6, still) == pytest.approx(1e-6 * math.sqrt(12) / (1e-2 * 2))
    assert relative_error(exact[:0], exact[:0]) == 0.0


def test_equal_results_pass(batch, results):
    found = compare_systems(results, results, batch, 1e-9, "the other's")
    assert (found.error, found.reasons) == (0.0, ())
    assert compare_sums(results, batch, 1e-9) == ()


# Scales: of an energy 4 eV, for 2 atoms with 1 eV/Å on each; of a virial 4 + 6 eV; of energies of atoms 5 times 2 eV.
@pytest.mark.parametrize(
    ("name", "where", "limit", "text"),
    [
        ("energy", 1, 4e-3, r"its energy differs from the other's by 4.4e-03 eV in system 1 \(at most 4e-03 eV"),
        ("energy_spread", 0, 4e-3, "its energy spread differs from the other's by 4.4e-03 eV in system 0"),
        ("energies", (slice(0, 4),), 1e-2, r"the energies of its atoms differ from the other's by 1.1e-02 eV \(RMS"),
        ("stress", 0, 1e-2 / 100 / 3, "its stress times volume differs from the other's by 1.1e-02 eV in system 0"),
        ("force_spread", (slice(0, 4),), 1e-3, "its forces differ from the other's by 1.1e-03"),
    ],
)
def test_a_difference_may_be_as_large_as_the_tolerance_times_its_scale(batch, results, name, where, limit, text):
    scale = 1.005 if name == "force_spread" else 1.0  # relative to all columns: |F| = 2 and a spread of 0.2
    for factor, seen in ((0.9, False), (1.1, True)):
        wrong = {key: value.clone() for key, value in results.items()}
        wrong[name][where] += factor * limit * scale
        reasons = compare_systems(wrong, results, batch, 1e-3, "the other's").reasons
        assert bool(reasons) is seen
    assert len(reasons) == 1
    assert re.match(text, reasons[0]), reasons[0]


def test_wrong_forces_and_nan_are_seen(batch, results):
    for wrong in (results["forces"] * 1.01, results["forces"] * torch.nan):
        found = compare_systems(results | {"forces": wrong}, results, batch, 1e-3, "the other's")
        assert found.reasons[0].startswith("its forces differ from the other's by")
    wrong = results["stress"] * torch.nan
    assert compare_systems(results | {"stress": wrong}, results, batch, 1e-3, "the other's").reasons


def test_what_is_not_given_is_not_compared(batch, results):
    few = {name: results[name] for name in ("energy", "forces")}
    assert compare_systems(few, results, batch, 1e-9, "the other's").reasons == ()
    assert compare_systems(results, few, batch, 1e-9, "the other's").reasons == ()


def test_atoms_are_compared_by_forces_on_the_first_and_energies_of_all(results):
    exact = {"energies": results["energies"], "forces": results["forces"][:2]}
    found = {name: results[name].clone() for name in ("energies", "forces")}
    assert compare_atoms(found, exact, 1e-9, "the other's").reasons == ()
    found["forces"][3] += 1  # not known
    assert compare_atoms(found, exact, 1e-9, "the other's").reasons == ()
    found["energies"][3] += 1
    assert "energies of its atoms" in compare_atoms(found, exact, 1e-9, "the other's").reasons[0]
    found["forces"][1] += 1
    assert len(compare_atoms(found, exact, 1e-9, "the other's").reasons) == 2


def test_results_that_contradict_each_other_are_seen(batch, results):
    forces = results["forces"].clone()
    forces[3] = 0
    assert compare_sums(results | {"forces": forces}, batch, 1e-3) == (
        "the sum of its forces differs from zero by 1.0e+00 eV/Å in system 1 (at most 1e-02 eV/Å is allowed)",
    )
    (reason,) = compare_sums(results | {"energy": results["energy"] + 100}, batch, 1e-3)
    assert reason.startswith("its energy differs from the sum of its atoms' by 1.0e+02 eV in system ")
