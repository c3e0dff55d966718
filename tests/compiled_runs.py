"""Evaluations by the engine in C and by the exact model in float64, and their comparison."""

import copy
import dataclasses

import torch

from torchmdx import Batch, System, evaluate
from torchmdx.engines.choose import choose_engine
from torchmdx.neighbors.brute_force import brute_force

LIMIT = 2e-6  # of forces, relative: the norm of the error by the norm of the forces


def batch_of(*structures, dtype=torch.float32):
    return Batch.from_systems([System.from_ase(atoms, dtype=dtype) for atoms in structures])


def exact(potential, batch):
    return evaluate(copy.deepcopy(potential).double(), batch.to(dtype=torch.float64), stress=True)


def run(potential, batch, *, skin=0.0, spare=0, forces=True, engine=None):
    """The engine's results at a batch; skin: Å that the list reaches beyond the cutoff."""
    engine = engine or choose_engine(potential, batch, stress=True, precision="float32")[0]
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


def assert_exact(found, wanted, limit=LIMIT):
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
