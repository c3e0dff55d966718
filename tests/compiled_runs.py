"""Evaluations by the engine in C and by the exact model in float64, and their comparison."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from ase import Atoms
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from torchmdx import Batch, System, evaluate
from torchmdx.engines.choose import choose_engine
from torchmdx.neighbors.brute_force import brute_force

# Of forces, relative: the norm of the error by the norm of the forces.
LIMITS = {torch.float32: 2e-6, torch.float64: 1e-10}
LIMIT = LIMITS[torch.float32]
DTYPES = pytest.mark.parametrize("dtype", LIMITS, ids=lambda dtype: str(dtype).removeprefix("torch."))


def batch_of(*structures, dtype=torch.float32):
    return Batch.from_systems([System.from_ase(atoms, dtype=dtype) for atoms in structures])


def exact(potential, batch):
    return evaluate(copy.deepcopy(potential).double(), batch.to(dtype=torch.float64), stress=True)


def run(potential, batch, *, skin=0.0, spare=0, forces=True, engine=None):
    """The engine's results at a batch; skin: Å that the list reaches beyond the cutoff."""
    precision = str(potential.dtype).removeprefix("torch.")
    engine = engine or choose_engine(potential, batch, stress=True, precision=precision)[0]
    edges = brute_force(batch, potential.cutoff + skin)
    if spare:
        edges = brute_force(batch, potential.cutoff + skin, edges.capacity + spare)
    engine.reserve(edges.capacity)
    found = engine.run(batch.positions, batch.cell, edges, forces=forces)
    return dataclasses.replace(
        found, **{name: value.clone() for name, value in vars(found).items() if value is not None}
    )


def relative(found, wanted):
    difference = (found.double() - wanted).norm()
    return float(difference / wanted.norm()) if float(wanted.norm()) else float(difference)


def assert_exact(found, wanted):
    limit = LIMITS[found.forces.dtype]
    assert relative(found.forces, wanted.forces) < limit
    if not len(wanted.energies):
        return
    size = 1 + float(wanted.energies.abs().max())
    assert float((found.energies - wanted.energies).abs().max()) < limit * size
    assert float((found.energy - wanted.energy).abs().max()) < limit * size * len(wanted.energies)
    known = ~torch.isnan(wanted.stress)
    assert torch.equal(torch.isnan(found.stress), ~known)
    if known.any():
        assert relative(found.stress[known], wanted.stress[known]) < 5 * limit


def boxes(examples, most_atoms):
    """A decorator for tests of count atoms (at most) in a cell of about width Å."""
    numbers = some.integers(0, most_atoms), some.integers(0, 10**6)
    pbc, shape = some.tuples(*[some.booleans()] * 3), (some.floats(2.5, 9.0), some.floats(-0.4, 0.4))
    options = dict(max_examples=examples, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    return lambda test: settings(**options)(given(*numbers, pbc, *shape)(test))


def assert_box_is_exact(potential, count, seed, pbc, width, skew):
    random = np.random.default_rng(seed)
    cell = width * (np.eye(3) + skew * random.uniform(-1, 1, (3, 3)))
    positions = []
    for place in random.uniform(0, 1, (count, 3)) @ cell:  # apart from each other and from all images
        images = [k @ cell for k in np.ndindex(3, 3, 3)] if any(pbc) else [np.ones(3) @ cell]
        near = [np.linalg.norm(place - p + image - np.ones(3) @ cell) for p in positions for image in images]
        if all(d > 0.9 for d in near):
            positions.append(place)
    atoms = Atoms(random.choice([1, 6, 7, 8], len(positions)), np.reshape(positions, (-1, 3)), cell=cell, pbc=pbc)
    batch, limit = batch_of(atoms, dtype=potential.dtype), LIMITS[potential.dtype]
    found, wanted = run(potential, batch), exact(potential, batch)
    assert found.forces.dtype == potential.dtype
    # Forces and stress may vanish by symmetry, or nearly so: the size of forces between atoms is 1 eV/Å.
    least = np.sqrt(len(positions))
    assert float((found.forces - wanted.forces).norm()) <= limit * max(least, float(wanted.forces.norm()))
    assert float((found.energies - wanted.energies).abs().sum()) <= limit * (least + float(wanted.energies.abs().sum()))
    volume, known = abs(np.linalg.det(cell)), ~torch.isnan(wanted.stress)
    virial, error = (float(x[known].norm()) * volume for x in (wanted.stress, found.stress - wanted.stress))
    assert error <= 5 * limit * max(least, virial)
