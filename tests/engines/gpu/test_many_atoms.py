"""Kernels that evaluate only the atoms of a domain that matter, against the exact model."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from ase import Atoms
from domains import divide
from interpreter import DEVICE, needs_kernels

from torchmdx import Potential, System, TensorNetConfig, evaluate
from torchmdx.engines.gpu.engine import GpuEngine
from torchmdx.engines.gpu.tensornet import FastTensorNet
from torchmdx.engines.plan.launch_sizes import ByElements, Tiles
from torchmdx.neighbors.brute_force import brute_force
from torchmdx.step.domain_reach import reach
from torchmdx.step.domain_step import DomainStep

pytestmark = needs_kernels


def wire(count: int) -> Atoms:
    """Atoms in a row of a periodic cell, out of line."""
    random = np.random.default_rng(0)
    positions = np.arange(count)[:, None] * [1.3, 0, 0] + random.uniform(-0.2, 0.2, (count, 3)) + [0.3, 2, 2]
    return Atoms(random.choice([1, 6, 8], count), positions, cell=[1.3 * count, 8, 8], pbc=[True, False, False])


@pytest.mark.nightly
@pytest.mark.parametrize("lean", [False, True], ids=["kept", "computed again"])
@pytest.mark.parametrize(
    "settings",
    [{"num_layers": 2}, {"num_layers": 0}, {"head": "gated", "num_head_layers": 1}, {"num_channels": 32}],
)
def test_parts_add_up_to_the_whole(settings, lean, monkeypatch):
    tiles = replace(Tiles.choose(1000), lean=lean, piece=16, by_elements=ByElements(edges=0))
    planned = FastTensorNet.planned
    monkeypatch.setattr(FastTensorNet, "planned", lambda model, work: planned(model, work, tiles))
    torch.manual_seed(0)
    given = dict(num_channels=16, num_radial=8, num_layers=1, cutoff=2.0) | settings
    model = Potential(TensorNetConfig(**given))
    atoms = wire(24)
    exact = evaluate(model.double(), System.from_ase(atoms))
    model = model.float().to(DEVICE)
    forces, energies = np.zeros((len(atoms), 3)), np.zeros(len(atoms))
    for part in divide(atoms, 2, reach(model), 2.0):
        numbers, cell = atoms.numbers[part.atoms], atoms.cell.array
        step = DomainStep(model, (False, False, False), mode="eager")
        step.assign(part.positions, numbers, part.num_owned, cell, num_total=len(atoms), hops=part.hops)
        domain = step.step.ordered
        assert (np.diff(domain.within.tolist()) > 0).all()  # every layer leaves out some atoms
        engine = GpuEngine(model, domain, stress=True)
        edges = brute_force(domain, model.cutoff)
        engine.reserve(edges.capacity)
        assert (engine.model.buffers.present is not None) == (given["num_channels"] == 32)
        for tensor in engine.model.buffers.scratch.tensors():
            if tensor.is_floating_point():
                tensor.fill_(torch.nan)  # what is left out must not be read
        if not given["num_layers"]:
            engine.model.buffers.scratch.gradient.pull.zero_()  # zero from the start, because no layer writes it
        found = engine.run(step.step.buffers.places, step.step.buffers.box, edges)
        np.add.at(forces, part.atoms, found.forces.double().cpu().numpy()[: len(part.atoms)])
        energies[part.atoms[: part.num_owned]] = found.energies.cpu().numpy()[: part.num_owned]
    assert np.abs(energies - exact.energies.numpy()).max() < 1e-5
    assert np.linalg.norm(forces - exact.forces.numpy()) < 2e-6 * np.linalg.norm(exact.forces.numpy())
