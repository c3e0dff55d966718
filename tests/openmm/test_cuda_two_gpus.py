"""OpenMM with DeviceIndex 1, and Contexts on two GPUs in one process, by every transport."""

import copy
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

openmm = pytest.importorskip("openmm", reason="needs OpenMM")
from boxes import assert_same, context_of, empty_system, expected, found, topology_of  # noqa: E402
from transports import require_on_gpu  # noqa: E402

from torchmdx.openmm import add_potential  # noqa: E402
from torchmdx.structures.units import NANOMETER  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.two_gpus]
TRANSPORTS = ("native", "python", "torch")
TOLERANCE = 2e-5


@pytest.fixture(autouse=True)
def the_current_gpu_stays(request):
    require_on_gpu(request)
    torch.cuda.set_device(0)
    yield
    assert torch.cuda.current_device() == 0


@pytest.fixture
def potential(make_potential):
    return make_potential(num_channels=16, num_layers=2, cutoff=4.0)


def context_on(gpu: int, potential, atoms, transport: str, **options):
    """A Context on a GPU whose only force is the potential, on the same GPU."""
    system = empty_system(atoms)
    force = add_potential(system, topology_of(atoms), potential, device=f"cuda:{gpu}", transport=transport, **options)
    assert force.transport == transport
    return context_of(system, atoms, "CUDA", DeviceIndex=str(gpu), Precision="mixed")


def at(context, atoms):
    """A copy of the atoms where the context has them."""
    moved = copy.deepcopy(atoms)
    moved.positions = context.getState(positions=True).getPositions(asNumpy=True)._value * NANOMETER
    return moved


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_device_index_1(potential, ethanol, crystal, transport):
    crystal.set_cell([[3.2, 0, 0], [0.5, 3.1, 0], [-0.6, 0.4, 3.3]], scale_atoms=True)  # as OpenMM wants a box
    crystal = crystal.repeat(3)
    for atoms in (ethanol, crystal):
        context = context_on(1, potential, atoms, transport)
        for _ in range(4):  # launched, captured, replayed
            assert_same(found(context), expected(potential, atoms), TOLERANCE)
        context.setVelocitiesToTemperature(300, 1)
        context.getIntegrator().step(50)
        assert_same(found(context), expected(potential, at(context, atoms)), 1e-4)
        assert found(context, groups={3})[0] == 0


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_contexts_on_both_take_turns(potential, ethanol, transport):
    contexts = [context_on(gpu, potential, ethanol, transport) for gpu in (0, 1)]
    for context in contexts:
        context.setVelocitiesToTemperature(300, 5)
    for _ in range(10):
        for context in contexts:
            context.getIntegrator().step(3)
            assert_same(found(context), expected(potential, at(context, ethanol)), 1e-4)
    one, other = (at(context, ethanol).positions for context in contexts)
    np.testing.assert_allclose(other, one, atol=1e-4)
    del context, contexts[0]  # the other goes on after the first is gone
    contexts[0].getIntegrator().step(3)
    assert_same(found(contexts[0]), expected(potential, at(contexts[0], ethanol)), 1e-4)
    for gpu in (0, 1):
        assert torch.ones(3, device=f"cuda:{gpu}").sum().item() == 3


@pytest.mark.parametrize("transport", TRANSPORTS[:2])  # openmm-torch evaluates in a thread of the force's own
def test_contexts_on_both_in_threads_of_their_own(potential, ethanol, transport):
    contexts, errors = [context_on(gpu, potential, ethanol, transport) for gpu in (0, 1)], []

    def work(context):
        try:
            context.getIntegrator().step(200)
            found(context)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(context,)) for context in contexts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for context in contexts:
        assert_same(found(context), expected(potential, at(context, ethanol)), 1e-4)


def test_a_potential_on_another_gpu_than_its_context_by_python(potential, ethanol):
    system = empty_system(ethanol)
    add_potential(system, topology_of(ethanol), potential, device="cuda:1", transport="python")
    context = context_of(system, ethanol, "CUDA", DeviceIndex="0")
    for _ in range(4):
        assert_same(found(context), expected(potential, ethanol), TOLERANCE)


def test_a_potential_on_another_gpu_than_its_context_is_refused_by_native(potential, ethanol):
    system = empty_system(ethanol)
    add_potential(system, topology_of(ethanol), potential, device="cuda:1", transport="native")
    context = context_of(system, ethanol, "CUDA", DeviceIndex="0")
    with pytest.raises(
        openmm.OpenMMException, match="the GPU of the Context, cuda:0, got cuda:1: give device='cuda:0'"
    ):
        found(context)


@pytest.mark.parametrize("device", [None, "cuda"])
def test_a_potential_without_a_gpu_of_its_own_follows_its_contexts(potential, ethanol, device):
    system = empty_system(ethanol)
    force = add_potential(system, topology_of(ethanol), potential, device=device, transport="native")
    contexts = [context_of(system, ethanol, "CUDA", DeviceIndex=str(gpu)) for gpu in (1, 0, 1)]
    for _ in range(4):
        for context in contexts:
            assert_same(found(context), expected(potential, ethanol), TOLERANCE)
    assert len(force.evaluator.sessions) == 3


@pytest.mark.parametrize("transport", TRANSPORTS[:2])
def test_an_ensemble_on_the_second(make_potential, ethanol, transport):
    members = [make_potential(seed=seed, num_channels=16, num_layers=2, cutoff=4.0) for seed in (0, 1)]
    context = context_on(1, members, ethanol, transport)
    for _ in range(4):
        assert_same(found(context), expected(members, ethanol), TOLERANCE)


FIRST_IN_THE_PROCESS = """
import sys; sys.path[:0] = ["tests", "tests/openmm"]
import ase.build
from boxes import context_of, empty_system, found, topology_of
from torchmdx.openmm import add_potential
atoms = ase.build.molecule("CH3CH2OH")
system = empty_system(atoms)
add_potential(system, topology_of(atoms), device="cuda:1", transport="TRANSPORT")
context = context_of(system, atoms, "CUDA", DeviceIndex="1")
for _ in range(4):
    found(context)
context.getIntegrator().step(10)
"""


@pytest.mark.parametrize("own", ["0", "1"])  # whether OpenMM keeps a CUDA context of its own
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_process_that_has_never_used_the_first(transport, own, request):
    """The current device of OpenMM's threads is 0, where this process has no context."""
    if transport == "native" and own == "1":
        pytest.skip("native needs the shared context")
    script = FIRST_IN_THE_PROCESS.replace("TRANSPORT", transport)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        capture_output=True, text=True, check=False, cwd=request.config.rootpath,
        env=os.environ | {"TORCHMDX_OWN_CONTEXT": own},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
