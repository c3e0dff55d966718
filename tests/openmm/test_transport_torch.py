"""The transport of openmm-torch: what it hands over, and what it does where openmm-torch is missing or does not work.

The scripted module is called as openmm-torch calls it, directly and through a stand-in for TorchForce; and by the real
one, where that works beside this torch.
"""

import io
import subprocess
import sys
import warnings
from types import SimpleNamespace

import forked_programs
import numpy as np
import pytest
import torch

openmm = pytest.importorskip("openmm", reason="needs OpenMM")
from boxes import assert_same, context_of, empty_system, expected, found, topology_of  # noqa: E402

from torchmdx.openmm import (  # noqa: E402
    add,
    add_potential,
    transport_torch,
)
from torchmdx.structures.units import KJ_PER_MOL, NANOMETER  # noqa: E402

EXACT = dict(device="cpu", precision="float64")


@pytest.fixture
def potential(make_potential):
    return make_potential(num_channels=8, num_layers=1, cutoff=3.0)


@pytest.fixture
def reduced(crystal):
    crystal.set_cell([[3.2, 0, 0], [0.5, 3.1, 0], [-0.6, 0.4, 3.3]], scale_atoms=True)
    return crystal


def evaluator_of(potential, structure, **options):
    return add_potential(
        empty_system(structure), topology_of(structure), potential, transport="python", **{**EXACT, **options}
    ).evaluator


def called(module, structure, *scale, dtype=torch.float64):
    """Energy (eV) and forces (eV/Å), as openmm-torch would ask for them."""
    inputs = [torch.tensor(structure.positions / NANOMETER, dtype=dtype)]
    if structure.pbc.any():
        inputs.append(torch.tensor(structure.cell.array / NANOMETER, dtype=dtype))
    energy, forces = module(*inputs, *(torch.tensor(s) for s in scale))
    assert energy.dtype == torch.float64  # total energies of 1e6 kJ/mol lose tenths in float32
    assert forces.dtype == dtype
    return energy.item() * KJ_PER_MOL, forces.double().numpy() * (KJ_PER_MOL / NANOMETER)


@pytest.mark.parametrize("name", ["ethanol", "reduced"])
def test_the_module_takes_nanometres_and_gives_kilojoules(potential, request, name):
    atoms = request.getfixturevalue(name)
    module = transport_torch.module_of(evaluator_of(potential, atoms))
    assert_same(called(module, atoms), expected(potential, atoms))
    atoms.rattle(0.05, seed=3)
    assert_same(called(module, atoms), expected(potential, atoms))
    assert_same(called(module, atoms, dtype=torch.float32), expected(potential, atoms), 1e-5)


def test_the_scale_multiplies_both(potential, reduced):
    module = transport_torch.module_of(evaluator_of(potential, reduced, scale_parameter="s"))
    energy, forces = expected(potential, reduced)
    assert_same(called(module, reduced, 0.25), (0.25 * energy, 0.25 * forces))


def test_a_subset_in_its_order_and_zeros_elsewhere(potential, ethanol):
    chosen = [5, 0, 2, 1, 8]
    module = transport_torch.module_of(evaluator_of(potential, ethanol, atoms=chosen))
    energy, forces = called(module, ethanol)
    assert_same((energy, forces[chosen]), expected(potential, ethanol[chosen]))
    assert not np.delete(forces, chosen, axis=0).any()


def test_a_large_energy_keeps_its_digits(make_potential, ethanol):
    potential = make_potential(num_channels=8, num_layers=1, cutoff=3.0)
    potential.reference_energies[6] = -1.0e6
    module = transport_torch.module_of(evaluator_of(potential, ethanol))
    assert called(module, ethanol, dtype=torch.float32)[0] == pytest.approx(expected(potential, ethanol)[0], abs=1e-4)


LOADS = """
import io, sys, torch
from ase.build import molecule
from boxes import empty_system, topology_of
from conftest import random_potential
from torchmdx.openmm import add_potential
from torchmdx.openmm.transport_torch import module_of
atoms = molecule("CH3CH2OH")
force = add_potential(empty_system(atoms), topology_of(atoms), random_potential(), transport="python", device="cpu")
module_of(force.evaluator)
try:
    print(torch.jit.load(io.BytesIO(sys.stdin.buffer.read()))(torch.randn(9, 3)))
except Exception as error:
    print(error)
"""


@pytest.mark.nightly
def test_a_module_from_another_process_is_refused(potential, ethanol, request):
    file = io.BytesIO()
    torch.jit.save(transport_torch.module_of(evaluator_of(potential, ethanol)), file)
    tests = request.config.rootpath / "tests"
    script = f"import sys; sys.path[:0] = [{str(tests)!r}, {str(tests / 'openmm')!r}]" + LOADS
    done = subprocess.run(
        [*forked_programs.python(), "-c", script], input=file.getvalue(), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    assert "a TorchForce works only in the process that created it: add the potential again" in done.stdout.decode()


class StandIn(openmm.PythonForce):
    """Calls a module as TorchForce does: positions, box if periodic, then global parameters in their order.

    A PythonForce has the parameters that it is made with: here always "s".
    """

    def __init__(self, module):
        self.outputs_forces, self.periodic, self.names = False, False, []

        def call(state):
            inputs = [torch.tensor(state.getPositions(asNumpy=True)._value)]
            if self.periodic:
                inputs.append(torch.tensor(np.array(state.getPeriodicBoxVectors(asNumpy=True)._value)))
            assert self.outputs_forces
            energy, forces = module(*inputs, *(torch.tensor(state.getParameters()[n]) for n in self.names))
            return energy.item(), forces.numpy()

        super().__init__(call, {"s": 1.0})

    def setOutputsForces(self, value):
        self.outputs_forces = value

    def setUsesPeriodicBoundaryConditions(self, value):
        self.periodic = value
        super().setUsesPeriodicBoundaryConditions(value)

    def addGlobalParameter(self, name, value):
        assert (name, value) == ("s", 1.0)
        self.names.append(name)


@pytest.fixture
def stand_in(monkeypatch):
    monkeypatch.setitem(sys.modules, "openmmtorch", SimpleNamespace(TorchForce=StandIn))
    monkeypatch.setattr(add, "why_not_torch", lambda cuda: None)


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("name", ["ethanol", "reduced"])
def test_a_force_around_the_module(potential, request, name):
    atoms = request.getfixturevalue(name)
    system = empty_system(atoms)
    options = dict(scale_parameter="s", force_group=5, name="ml", transport="torch", **EXACT)
    force = add_potential(system, topology_of(atoms), potential, **options)
    assert (force.transport, force.why) == ("torch", "requested")
    assert (force.force.getForceGroup(), force.force.getName()) == (5, "ml")
    assert force.report() is None
    context = context_of(system, atoms)
    energy, forces = expected(potential, atoms)
    assert_same(found(context), (energy, forces))
    context.setParameter("s", 0.5)
    assert_same(found(context), (0.5 * energy, 0.5 * forces))
    assert found(context, groups={0})[0] == 0
    assert force.report() is not None
    assert force.num_recoveries == 0


@pytest.mark.usefixtures("stand_in")
def test_wrapped_positions_are_refused(potential, reduced):
    system = empty_system(reduced)
    nonbonded = openmm.NonbondedForce()
    nonbonded.setNonbondedMethod(openmm.NonbondedForce.CutoffPeriodic)
    for _ in range(len(reduced)):
        nonbonded.addParticle(0, 1, 0)
    system.addForce(nonbonded)
    with pytest.raises(ValueError, match="transport 'torch' needs periodic=True in a periodic system"):
        add_potential(system, topology_of(reduced), potential, transport="torch", periodic=False, **EXACT)
    assert system.getNumForces() == 1


@pytest.mark.usefixtures("stand_in")
def test_warnings_inside_the_library_stay_there(potential, ethanol, monkeypatch):
    """An error there would cross C++ and abort the process."""

    class Warning_(StandIn):
        def __init__(self, module):
            warnings.warn("`torch.jit.save` is deprecated", DeprecationWarning, stacklevel=1)
            super().__init__(module)

    monkeypatch.setitem(sys.modules, "openmmtorch", SimpleNamespace(TorchForce=Warning_))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        force = add_potential(empty_system(ethanol), topology_of(ethanol), potential, transport="torch", **EXACT)
    assert force.transport == "torch"


def test_missing_and_broken_libraries_are_named(monkeypatch, potential, ethanol):
    why_not_torch = transport_torch.why_not_torch.__wrapped__
    monkeypatch.setattr(add, "why_not_torch", why_not_torch)
    monkeypatch.setitem(sys.modules, "openmmtorch", None)
    assert why_not_torch(False).startswith("openmm-torch cannot be imported: ")

    def broken(module):
        raise RuntimeError("undefined symbol: _ZN3c10\nand a long tale")

    monkeypatch.setitem(sys.modules, "openmmtorch", SimpleNamespace(TorchForce=broken))
    system = empty_system(ethanol)
    message = f"transport 'torch' cannot be used: openmm-torch does not work with torch {torch.__version__}: undefined"
    with pytest.raises(ImportError) as info:
        add_potential(system, topology_of(ethanol), potential, transport="torch", **EXACT)
    assert str(info.value).startswith(message)
    assert "tale" not in str(info.value)
    assert system.getNumForces() == 0


def test_the_real_one(potential, reduced):
    reason = transport_torch.why_not_torch(False)
    if reason is not None:
        pytest.skip(reason)
    chosen = [2, 0]
    system = empty_system(reduced)
    force = add_potential(system, topology_of(reduced), potential, chosen, transport="torch", **EXACT)
    assert force.transport == "torch"
    energy, forces = found(context_of(system, reduced))
    assert_same((energy, forces[chosen]), expected(potential, reduced[chosen]))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["ethanol", "reduced"])
@pytest.mark.parametrize("precision", ["single", "mixed", "double"])
def test_the_real_one_on_a_gpu(potential, request, name, precision):
    reason = transport_torch.why_not_torch(True)
    if reason is not None:
        pytest.skip(f"{reason}; pip install 'torchmdx[openmm-torch]'")
    atoms = request.getfixturevalue(name)
    system = empty_system(atoms)
    force = add_potential(
        system, topology_of(atoms), potential, transport="torch", device="cuda", mode="graph", scale_parameter="s"
    )
    context = context_of(system, atoms, "CUDA", Precision=precision)
    energy, forces = expected(potential, atoms)
    for scale in (1.0, 1.0, 1.0, 0.5):  # launched, captured, replayed
        context.setParameter("s", scale)
        assert_same(found(context), (scale * energy, scale * forces), 2e-5)
    assert (force.transport, force.report().mode) == ("torch", "graph")
    context.getIntegrator().step(50)
    assert np.isfinite(found(context)[0])
