"""Contexts in several threads of one process, on one GPU: one captures while another steps."""

import copy
import threading

import pytest
import torch

openmm = pytest.importorskip("openmm", reason="needs OpenMM")
from boxes import assert_same, context_of, empty_system, expected, found, topology_of  # noqa: E402

from torchmdx.openmm import add_potential  # noqa: E402
from torchmdx.structures.units import NANOMETER  # noqa: E402

pytestmark = pytest.mark.gpu
CAPTURES = 20


@pytest.fixture
def potential(make_potential):
    return make_potential(num_channels=16, num_layers=2, cutoff=4.0)


def new_context(potential, atoms, transport):
    system = empty_system(atoms)
    add_potential(system, topology_of(atoms), potential, device="cuda", transport=transport, mode="graph")
    return context_of(system, atoms, "CUDA")


@pytest.mark.parametrize("transport", ["native", "python"])
def test_a_context_captures_while_another_steps(potential, ethanol, transport):
    if "CUDA" not in [openmm.Platform.getPlatform(i).getName() for i in range(openmm.Platform.getNumPlatforms())]:
        pytest.skip("needs OpenMM's CUDA platform")
    running, stop, errors, rounds = new_context(potential, ethanol, transport), threading.Event(), [], [0]
    found(running)  # captured before the other thread begins

    def step():
        try:
            while not stop.is_set():
                running.getIntegrator().step(5)
                rounds[0] += 1
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=step)
    thread.start()
    try:
        wanted = expected(potential, ethanol)
        for _ in range(CAPTURES):
            before = rounds[0]
            assert_same(found(new_context(potential, ethanol, transport)), wanted, 2e-5)
            assert errors == []
            while rounds[0] == before and not errors:
                pass
    finally:
        stop.set()
        thread.join()
    assert errors == []
    assert rounds[0] >= CAPTURES
    moved = copy.deepcopy(ethanol)
    moved.positions = running.getState(positions=True).getPositions(asNumpy=True)._value * NANOMETER
    assert_same(found(running), expected(potential, moved), 1e-4)
    assert torch.ones(3, device="cuda").sum().item() == 3


@pytest.mark.parametrize("transport", ["native", "python"])
def test_contexts_capture_at_the_same_time(potential, ethanol, transport):
    if "CUDA" not in [openmm.Platform.getPlatform(i).getName() for i in range(openmm.Platform.getNumPlatforms())]:
        pytest.skip("needs OpenMM's CUDA platform")
    contexts = [new_context(potential, ethanol, transport) for _ in range(4)]
    gate, results, errors = threading.Barrier(len(contexts)), [], []

    def first(context):
        try:
            gate.wait(timeout=60)
            results.append(found(context))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=first, args=(context,)) for context in contexts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    wanted = expected(potential, ethanol)
    for result in results:
        assert_same(result, wanted, 2e-5)
