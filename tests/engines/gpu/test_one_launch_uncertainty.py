"""Uncertainties of the energy in one launch: emulated on the CPU, and on a GPU."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from ase.build import molecule
from emulated import Emulator
from test_gpu_tensornet import batch_of
from test_one_launch import needs_hopper
from test_one_launch_networks import made, structures
from uncertain import expected, features_by_autograd, uncertain

from torchmdx import CapturedStep, System
from torchmdx.engines.gpu.one_launch import OneLaunch
from torchmdx.engines.gpu.tensornet import FastTensorNet
from torchmdx.engines.plan.clusters import AtomClusters, ClusterNetwork
from torchmdx.models.uncertainty import with_uncertainty
from torchmdx.neighbors.brute_force import brute_force

pytest.importorskip("triton")

emulated = pytest.mark.nightly  # a few seconds to compile each kernel, and a second for each launch
NETWORKS = {
    "usual": dict(),
    "gated": dict(head="gated", num_head_layers=1, num_layers=1, readout_activation=False),
    "narrow": dict(num_layers=1, num_channels=20, num_head_layers=1, activation="sigmoid"),
    "no layer": dict(num_layers=0, num_channels=64, head="gated", activation="tanh"),
}


@pytest.fixture(scope="module", params=NETWORKS)
def case(request, tmp_path_factory):
    potential = uncertain(made(NETWORKS[request.param]))
    constants = ClusterNetwork.of(potential.config).constants
    kernels = [Emulator(tmp_path_factory.mktemp("rows"), **constants, **more) for more in ({}, {"UNCERTAINTY_TOO": 1})]
    return potential, kernels


def launched(potential, kernel, batch, *, forces=True, plan=None):
    fast, edges = FastTensorNet(potential), brute_force(batch, potential.cutoff)
    buffers = fast.allocate(batch.num_atoms, batch.num_systems, edges.capacity)
    for value in (buffers.energies, buffers.energy, buffers.forces, *(buffers.uncertainties or ())):
        value.fill_(torch.nan)
    plan = plan or AtomClusters.choose(batch.num_atoms, 4, ClusterNetwork.of(potential.config))
    fast.one_launch = OneLaunch(fast, buffers, plan, kernel)
    inputs = (batch.positions, batch.atomic_numbers, batch.system_index, batch.cell, batch.charge, edges)
    return fast.run(*inputs, forces=forces)


def assert_as_expected(found, potential, batch):
    exact = copy.deepcopy(potential).double()
    for value, wanted in zip(found, expected(exact, batch), strict=True):
        np.testing.assert_allclose(value.cpu(), wanted, rtol=2e-5)


@emulated
@pytest.mark.parametrize("several", [False, True])
def test_they_are_those_of_the_formula_and_change_no_bit_of_the_forces(case, several):
    potential, (plain, kernel) = case
    batch = batch_of(*structures()) if several else batch_of(structures()[0])
    found = launched(potential, kernel, batch)
    assert_as_expected(found.uncertainties, potential, batch)
    rows = torch.from_numpy(features_by_autograd(copy.deepcopy(potential).double(), batch))
    torch.testing.assert_close(found.last_inputs.double(), rows, rtol=1e-5, atol=1e-5)
    wanted = launched(with_uncertainty(potential, None), plain, batch)
    for name in ("energy", "energies", "forces"):
        assert torch.equal(getattr(found, name), getattr(wanted, name))
    alone = launched(potential, kernel, batch, forces=False)
    assert torch.equal(alone.uncertainties[0], found.uncertainties[0])
    assert torch.equal(alone.last_inputs, found.last_inputs)


@emulated
def test_the_order_in_which_threads_run_changes_nothing(case, monkeypatch):
    potential, (_, kernel) = case
    batch, plan = batch_of(molecule("NH3")), AtomClusters(2, 2, 3, 2, True, ClusterNetwork.of(case[0].config))
    wanted = launched(potential, kernel, batch, plan=plan)
    monkeypatch.setenv("EMULATED_ORDER", "1")
    found = launched(potential, kernel, batch, plan=plan)
    for value, other in zip(found.uncertainties, wanted.uncertainties, strict=True):
        assert torch.equal(value, other)


def steps_of(potential, structures, **options):
    """Two steps, without and with uncertainties."""
    return [CapturedStep(potential, structures, uncertainty=wanted, **options) for wanted in (False, True)]


@pytest.mark.gpu
@needs_hopper
@pytest.mark.parametrize("name", [*NETWORKS, "periodic", "replicas"])
def test_on_a_gpu_a_step_keeps_one_launch_and_its_bits(name):
    potential = uncertain(made(NETWORKS.get(name, {})).to("cuda"))
    atoms = molecule("CH3CH2OH")
    if name == "periodic":
        atoms.set_cell([9, 9, 9])
        atoms.pbc = True
    system = System.from_ase(atoms)
    plain, doubtful = steps_of(potential, [system] * (3 if name == "replicas" else 1))
    positions = plain.batch.positions.cpu().numpy()
    for number in range(5):
        moved = positions + 0.02 * np.random.default_rng(number).normal(size=positions.shape)
        wanted, found = plain(moved), doubtful(moved)
        np.testing.assert_array_equal(found.forces, wanted.forces)
        np.testing.assert_array_equal(found.energy, wanted.energy)
        batch = replace(plain.batch.to("cpu"), positions=torch.from_numpy(moved))
        exact = expected(copy.deepcopy(potential).cpu().double(), batch)
        np.testing.assert_allclose(found.energy_uncertainty, exact[0], rtol=1e-4)
        np.testing.assert_allclose(found.energies_uncertainty, exact[1], rtol=1e-4)
    assert "one launch" in doubtful.engine.name
    assert doubtful.last_inputs.shape == (len(positions), potential.uncertainty.size)
