"""What a process of a run on several devices answers; tests/dynamics/test_process_loop.py starts some."""

import pickle

import numpy as np
import pytest
import torch

from torchmdx import Dynamics, System
from torchmdx.dynamics.device_process import ProcessShare, Server, _sendable, fields_of
from torchmdx.dynamics.integrators import Langevin
from torchmdx.dynamics.multiple_steps import DisagreementError
from torchmdx.step.results import NonFiniteError, SpreadError


@pytest.fixture
def server(make_potential, ethanol):
    potential = make_potential(dtype=torch.float32, num_layers=0, num_channels=4, num_radial=4)
    options = dict(integrator=Langevin(), timestep=0.25, temperature=[300.0, 400.0], seed=[7, 9])
    return Server(Dynamics, ProcessShare(potential, "cpu", [System.from_ase(ethanol)] * 2, options, 1))


def test_messages_are_those_of_the_dynamics(server):
    dynamics = server._dynamics
    assert server.run(3) == dynamics.num_steps == 3
    before = server.snapshot()
    np.testing.assert_array_equal(server.energies(), before["energy"])
    server.run(2)
    server.restore(before)
    assert dynamics.num_steps == 3
    server.set_velocities(2 * before["velocities"])
    np.testing.assert_array_equal(dynamics.snapshot().velocities, 2 * before["velocities"])
    assert fields_of(dynamics.snapshot()).keys() == before.keys()


def test_an_exchange_scales_velocities(server):
    before = server.snapshot()
    server.exchange(np.array([400.0, 300.0]))
    after = server.snapshot()
    np.testing.assert_allclose(after["velocities"][:9], np.sqrt(4 / 3) * before["velocities"][:9])
    np.testing.assert_allclose(after["velocities"][9:], np.sqrt(3 / 4) * before["velocities"][9:])
    assert after["temperatures"].tolist() == [400.0, 300.0]


class Needy(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def test_errors_keep_type_and_text():
    assert _sendable(None) is None
    for error in (NonFiniteError("atom 3"), SpreadError("much", None, 3), ValueError("bad")):
        found = _sendable(error)
        assert type(found) is type(error)
        assert str(found) == str(error)
    for error in (
        SpreadError("much", None, 3, most=0.5, step=7, structure=2),
        DisagreementError("much", 8, 3, 2.0, 1.0),
    ):
        assert vars(pickle.loads(pickle.dumps(_sendable(error)))) == vars(error)
    found = _sendable(Needy(1, 2))
    assert type(found) is RuntimeError
    assert str(found) == "Needy: 1 and 2"
