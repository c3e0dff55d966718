"""Integrators by name: those of the package, one from outside, and classes that are none."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from oscillators import MASS, TEMPERATURE, THERMAL, last, require_variance, springs
from outside_integrator import Andersen

from torchmdx import Dynamics, System
from torchmdx.dynamics.integrators import (
    KINDS,
    Bussi,
    Integrator,
    Langevin,
    VelocityVerlet,
    integrator_of,
    register_integrator,
)
from torchmdx.structures.units import FORCE_TO_ACCELERATION


@pytest.fixture(autouse=True)
def _table_of_the_package():
    """Without what other tests have registered, and with it afterwards."""
    before = dict(KINDS)
    for name in list(KINDS)[3:]:
        del KINDS[name]
    yield
    KINDS.clear()
    KINDS.update(before)


@dataclass(frozen=True)
class Nothing:
    """What used to run as constant energy: a name and a parameter, and no step."""

    rate: float = 1.0
    name = "nothing"


class WithoutStep(Integrator):
    name = "without"


class WithoutName(Andersen):
    name = None


def test_names_and_objects():
    assert list(KINDS)[:3] == ["verlet", "langevin", "bussi"]
    assert integrator_of("verlet") == VelocityVerlet()
    assert integrator_of("langevin") == Langevin(friction=1.0)
    assert integrator_of(Bussi(0.2)) == Bussi(relaxation=0.2)
    with pytest.raises(ValueError, match=r"integrator must be one of verlet, langevin, bussi.*, got 'nose'"):
        integrator_of("nose")
    with pytest.raises(TypeError, match="got 3"):
        integrator_of(3)


def test_a_class_without_a_step_is_refused_however_it_arrives(make_potential, ethanol):
    with pytest.raises(TypeError, match="must be a subclass of Integrator, which makes its steps, got .*Nothing"):
        register_integrator(Nothing)
    with pytest.raises(TypeError, match=r"must be a name or an Integrator .* got Nothing\(rate=1.0\)"):
        Dynamics(make_potential(), System.from_ase(ethanol), integrator=Nothing())
    KINDS["nothing"] = Nothing
    with pytest.raises(TypeError, match="must be a subclass of Integrator"):
        Dynamics(make_potential(), System.from_ase(ethanol), integrator="nothing")
    with pytest.raises(TypeError, match="an integrator must have on_host, got WithoutStep without"):
        register_integrator(WithoutStep)
    with pytest.raises(TypeError, match="an integrator must have a name, got WithoutName without one"):
        register_integrator(WithoutName)


def test_a_name_belongs_to_one_class():
    assert register_integrator(Andersen) is Andersen
    assert register_integrator(Andersen) is Andersen  # a module that is imported twice

    class Other(Andersen):
        name = "langevin"

    with pytest.raises(ValueError, match="an integrator 'langevin' exists already: Langevin"):
        register_integrator(Other)


def test_an_integrator_from_outside_runs_by_its_name(make_potential, ethanol):
    register_integrator(Andersen)
    options = dict(timestep=0.5, temperature=300, seed=1)
    system = System.from_ase(ethanol)
    given = Dynamics(make_potential(), system, integrator=Andersen(), **options).run(20)
    found = Dynamics(make_potential(), system, integrator="andersen", **options).run(20)
    np.testing.assert_array_equal(found.positions, given.positions)
    verlet = Dynamics(make_potential(), system, integrator="verlet", **options).run(20)
    assert (verlet.positions != found.positions).any()
    assert found.particles.degrees_of_freedom() == [27]


def test_the_one_from_outside_has_the_temperature_of_its_equations():
    loop = springs(Andersen(rate=20.0), 2.0, [3000], temperature=TEMPERATURE, stiffness=0.0)
    loop.set_velocities(0.1 * loop.snapshot().velocities)
    require_variance(last(loop, 200).velocities, THERMAL * FORCE_TO_ACCELERATION / MASS)


@pytest.mark.gpu
def test_without_a_step_on_a_gpu_the_loop_runs_on_the_host_and_says_so(make_potential, ethanol):
    potential, system = make_potential(dtype=torch.float32).to("cuda"), System.from_ase(ethanol)
    dynamics = Dynamics(potential, system, integrator=Andersen(), timestep=0.5, seed=1)
    assert "since Andersen(rate=1.0) has no step on a GPU" in dynamics.why
    expected = Dynamics(potential.to("cpu"), system, integrator=Andersen(), timestep=0.5, seed=1).run(5)
    np.testing.assert_allclose(dynamics.run(5).positions, expected.positions, atol=1e-6)
    with pytest.raises(ValueError, match=r"mode 'graph' needs an integrator with a step on a GPU, got Andersen\(rate"):
        Dynamics(potential.to("cuda"), system, integrator=Andersen(), mode="graph")
