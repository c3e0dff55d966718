"""Coulomb sums of a region in its surroundings, against OpenMM's NonbondedForce and against differences."""

import numpy as np
import openmm
import pytest
import torch

from torchmdx.openmm import surroundings as module
from torchmdx.openmm import surroundings_lattice
from torchmdx.openmm.surroundings import Surroundings, interact
from torchmdx.openmm.surroundings_lattice import LatticeSplit

NUM, REGION = 40, 6
KJ = 138.93545764438198  # kJ/mol nm of two elementary charges
TRICLINIC = np.array([[2.3, 0.0, 0.0], [0.7, 2.4, 0.0], [-0.9, 1.0, 2.5]])  # nm
CASES = {
    "plain": (openmm.NonbondedForce.NoCutoff, None),
    "field": (openmm.NonbondedForce.CutoffNonPeriodic, None),
    "periodic field": (openmm.NonbondedForce.CutoffPeriodic, np.diag([2.3, 2.4, 2.5])),
    "lattice": (openmm.NonbondedForce.Ewald, np.diag([2.3, 2.4, 2.6])),
    "mesh": (openmm.NonbondedForce.PME, TRICLINIC),
}


def structure(box):
    rng = np.random.default_rng(7)
    grid = np.stack(np.meshgrid(*[np.arange(4)] * 3, indexing="ij"), -1).reshape(-1, 3)[:NUM] * 0.55
    positions = grid + rng.normal(0, 0.05, (NUM, 3))
    if box is not None:  # whole molecules need not be in the same image
        positions[REGION:] += rng.integers(-1, 2, size=(NUM - REGION, 3)) @ box
    return positions, rng.normal(0, 0.4, NUM)


def made(case, charges):
    box = CASES[case][1]
    name = case.split()[-1]
    kind = "lattice" if name == "mesh" else name
    return Surroundings(kind, tuple(charges[REGION:]), box is not None, 9.0, 78.3)


def of_openmm(case, positions, charges):
    """kJ/mol and kJ/mol/nm of the region's charges: the whole minus the rest, without pairs inside the region."""
    method, box = CASES[case]
    results = []
    for given in (charges, np.where(np.arange(NUM) < REGION, 0.0, charges)):
        system, force = openmm.System(), openmm.NonbondedForce()
        for charge in given:
            system.addParticle(1.0)
            force.addParticle(charge, 0.3, 0.0)
        for first in range(REGION):
            for second in range(first):
                force.addException(first, second, 0, 1, 0)
        force.setNonbondedMethod(method)
        force.setCutoffDistance(0.9)
        force.setReactionFieldDielectric(78.3)
        force.setEwaldErrorTolerance(1e-7)
        if case == "mesh":
            force.setPMEParameters(4.5, 90, 90, 90)
        if box is not None:
            force.setExceptionsUsePeriodicBoundaryConditions(True)
            system.setDefaultPeriodicBoxVectors(*box)
        system.addForce(force)
        context = openmm.Context(system, openmm.VerletIntegrator(1), openmm.Platform.getPlatformByName("Reference"))
        context.setPositions(positions)
        state = context.getState(energy=True, forces=True)
        results.append((state.getPotentialEnergy()._value, np.array(state.getForces(asNumpy=True)._value)))
    return results[0][0] - results[1][0], results[0][1] - results[1][1]


def ours(case, positions, charges, box, slopes=True, dtype=torch.float64):
    """In OpenMM's units: energy, forces, and the slope by the region's charges."""
    q, places = torch.tensor(charges[:REGION]), torch.tensor(10 * positions)
    cell = torch.eye(3, dtype=torch.float64) if box is None else torch.from_numpy(10 * box)
    given = made(case, charges)
    around = torch.tensor(given.charges, dtype=torch.float64)
    options = dict(surroundings=given, charges=around, cell=cell, slopes=slopes, dtype=dtype)
    found = interact(q, places[:REGION], places[REGION:], **options)
    forces = -100 * KJ * torch.cat([found.of_places, found.of_around]).numpy()
    return 10 * KJ * found.energy.item(), forces, 10 * KJ * found.of_charges.numpy()


@pytest.mark.parametrize("neutral", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_as_openmm(case, neutral):
    box = CASES[case][1]
    positions, charges = structure(box)
    if neutral:
        charges[:REGION] -= charges[:REGION].mean()
        charges[REGION:] -= charges[REGION:].mean()
    energy, forces, _ = ours(case, positions, charges, box)
    wanted = of_openmm(case, positions, charges)
    scale = np.abs(wanted[1]).max()
    tolerance = 1e-10 if "lattice" not in case and case != "mesh" else 2e-5
    assert energy == pytest.approx(wanted[0], abs=tolerance * scale)
    np.testing.assert_allclose(forces, wanted[1], atol=tolerance * scale)


@pytest.mark.parametrize("case", CASES)
def test_slopes_are_those_of_the_energy_in_any_blocks(case, monkeypatch):
    box = CASES[case][1]
    positions, charges = structure(box)
    energy, forces, slopes = ours(case, positions, charges, box)
    monkeypatch.setattr(module, "MOST_PAIRS", 7 * REGION)
    again = ours(case, positions, charges, box)
    assert again[0] == pytest.approx(energy, rel=1e-12)
    np.testing.assert_allclose(again[1], forces, atol=1e-9 * np.abs(forces).max())
    step = 1e-5
    for atom, axis in ((0, 0), (3, 2), (REGION, 1), (NUM - 1, 0)):
        ends = []
        for sign in (1, -1):
            moved = positions.copy()
            moved[atom, axis] += sign * step
            ends.append(ours(case, moved, charges, box)[0])
        assert (ends[1] - ends[0]) / (2 * step) == pytest.approx(forces[atom, axis], abs=2e-5 * np.abs(forces).max())
    changed = charges.copy()
    changed[2] += 1e-4
    slope = (ours(case, positions, changed, box)[0] - energy) / 1e-4
    assert slope == pytest.approx(slopes[2], rel=1e-3)


@pytest.mark.parametrize("case", CASES)
def test_energy_alone_and_single_precision(case):
    box = CASES[case][1]
    positions, charges = structure(box)
    energy, forces, slopes = ours(case, positions, charges, box)
    alone, none, of_charges = ours(case, positions, charges, box, slopes=False)
    assert alone == pytest.approx(energy, rel=1e-12)
    np.testing.assert_allclose(of_charges, slopes, rtol=1e-12)
    assert not none.any()
    single = ours(case, positions, charges, box, dtype=torch.float32)
    scale = np.abs(forces).max()
    assert single[0] == pytest.approx(energy, abs=1e-5 * scale)
    np.testing.assert_allclose(single[1], forces, atol=1e-5 * scale)


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_read_on_the_host(case, monkeypatch):
    """So that a CUDA graph can record it; sums are in parts here."""
    box = CASES[case][1]
    positions, charges = structure(box)
    wanted = ours(case, positions, charges, box)[0]
    monkeypatch.setattr(surroundings_lattice, "PART", 7)
    cell = torch.eye(3, dtype=torch.float64) if box is None else torch.from_numpy(10 * box)
    split, given = LatticeSplit.of(cell) if box is not None else None, made(case, charges)
    q, places, around = torch.tensor(charges[:REGION]), torch.tensor(10 * positions), torch.tensor(given.charges)

    def refuse(*given):
        raise AssertionError("a tensor was read on the host")

    with monkeypatch.context() as patched:
        for name in ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__", "__index__"):
            patched.setattr(torch.Tensor, name, refuse)
        options = dict(surroundings=given, charges=around, cell=cell, split=split)
        found = interact(q, places[:REGION], places[REGION:], **options)
    assert 10 * KJ * found.energy.item() == pytest.approx(wanted, rel=1e-9)


def test_unknown_methods_are_refused():
    with pytest.raises(ValueError, match="method must be one of plain, field, lattice, got 'mesh'"):
        Surroundings("mesh", (0.1,))
