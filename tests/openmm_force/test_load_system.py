"""Systems from XML: with the plugin where they need it, and without running code from the file."""

import os
import pickle
import subprocess
import sys

import numpy as np
import openmm
import pytest
from mixed_systems import LAMBDA, mix
from mm_systems import SOLUTE, assert_same, cluster, energy_and_forces, mm_system

from torchmdx import save
from torchmdx.moved import MOVED
from torchmdx.openmm_force import load_system
from torchmdx.openmm_force.native import native

NATIVE = pytest.param(
    "native", marks=pytest.mark.skipif(native.unavailable(cuda=False) is not None, reason="needs a C++ compiler")
)


def saved(potential, folder, transport, **options):
    save(potential, folder / "model.safetensors")
    topology, positions = cluster(1)
    mixed = mix(mm_system(topology), topology, SOLUTE, folder / "model.safetensors", transport=transport, **options)
    return openmm.XmlSerializer.serialize(mixed), mixed, positions


@pytest.mark.parametrize("interpolate", [None, LAMBDA])
@pytest.mark.parametrize("transport", ["python", NATIVE])
def test_a_file_and_its_text(potential, tmp_path, transport, interpolate):
    text, mixed, positions = saved(potential, tmp_path, transport, interpolate=interpolate)
    (tmp_path / "system.xml").write_text(text)
    wanted = energy_and_forces(mixed, positions)
    for source in (tmp_path / "system.xml", str(tmp_path / "system.xml"), text):
        assert_same(energy_and_forces(load_system(source), positions), wanted, 1e-12)
    plain = openmm.XmlSerializer.serialize(mm_system(cluster(1)[0]))
    assert load_system(plain).getNumParticles() == 25


@pytest.mark.parametrize("transport", ["python", NATIVE])
def test_what_is_missing_is_said_at_once(potential, tmp_path, transport):
    text, mixed, _ = saved(potential, tmp_path, transport)
    del mixed
    (tmp_path / "model.safetensors").rename(tmp_path / "elsewhere.safetensors")
    with pytest.raises((FileNotFoundError, openmm.OpenMMException), match="no checkpoint at .*model.safetensors"):
        load_system(text)


READS = """
import sys
from torchmdx.openmm_force import load_system
try:
    print(load_system(sys.stdin.read()).getNumParticles())
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize("compiler", [True, False])
def test_a_machine_where_the_plugin_was_never_compiled(potential, tmp_path, compiler):
    if native.unavailable(cuda=False) is not None:
        pytest.skip("needs a C++ compiler")
    text, _, _ = saved(potential, tmp_path, "native")
    environment = os.environ | {"TORCHMDX_CACHE": str(tmp_path / "cache")}
    if not compiler:
        environment |= {"CXX": "/nowhere/c++", "CC": "/nowhere/cc", "PATH": "/nowhere"}
    command = [sys.executable, "-W", "ignore", "-c", READS]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, env=environment)
    if compiler:
        assert done.stdout == "25\n", done.stderr
    else:
        expected = "this System has a potential of the transport 'native', which needs the plugin of torchmdx. "
        assert done.stdout.startswith(expected), (done.stdout, done.stderr)
        assert "transport='python' gives a System that can be read everywhere" in done.stdout


def test_a_file_that_names_a_former_module_path(potential, tmp_path, monkeypatch):
    """As those that an earlier version wrote: the path that leads to today's module is checked, not its text."""
    text, mixed, positions = saved(potential, tmp_path, "python")
    today, former = (f"torchmdx.openmm_force.transport_{name}" for name in ("python", "former"))
    assert len(today) == len(former)
    old = text.replace(today.encode().hex(), former.encode().hex())
    assert old != text
    with pytest.raises(ValueError, match="a function that is not one of torchmdx"):
        load_system(old)
    monkeypatch.setitem(MOVED, former, today)
    assert_same(energy_and_forces(load_system(old), positions), energy_and_forces(mixed, positions), 1e-12)


ran = []


class Evil:
    def __reduce__(self):
        return ran.append, (1,)


def compute(state):
    return 0.0, np.zeros((3, 3))


def hostile() -> list[bytes]:
    own = b"\x8c\x26torchmdx.openmm_force.transport_python\x8c\x07restore"
    words = b"\x8c\x08builtins\x8c\x05print"
    return [
        pickle.dumps(Evil()),
        pickle.dumps(compute),
        b"\x80\x04" + own + words + b"\x93\x8c\x01x\x88\x86R.",  # other words on the stack
        b"\x80\x04" + own + b"\x93\x8c\x01x\x88\x86R" + words + b"\x93\x8c\x01x\x85R.",  # a second call
        b"\x80\x04cbuiltins\nprint\n\x8c\x01x\x88\x86R.",
    ]


@pytest.mark.parametrize("code", hostile())
@pytest.mark.parametrize("nested", [False, True])
def test_functions_of_others_are_refused_and_not_run(code, nested):
    ran.clear()
    system, force = openmm.System(), openmm.PythonForce(compute)
    for _ in range(3):
        system.addParticle(1.0)
    if nested:
        outer = openmm.CustomCVForce("v")
        outer.addCollectiveVariable("v", force)
        force = outer
    system.addForce(force)
    text = openmm.XmlSerializer.serialize(system)
    text = text.replace(text.split('function="')[1].split('"')[0], code.hex())
    with pytest.raises(ValueError, match="PythonForce 'PythonForce' contains a function that is not one of torchmdx"):
        load_system(text)
    assert ran == []


def test_a_trusted_file():
    system = openmm.System()
    system.addParticle(1.0)
    system.addForce(openmm.PythonForce(compute))
    assert load_system(openmm.XmlSerializer.serialize(system), trusted=True).getNumForces() == 1


def test_text_that_is_no_system():
    for text in ("<Integrator type='VerletIntegrator'/>", openmm.XmlSerializer.serialize(openmm.VerletIntegrator(1))):
        with pytest.raises(ValueError, match="must be XML of OpenMM's XmlSerializer, got a Integrator"):
            load_system(text)
    with pytest.raises(ValueError, match="got text that is none"):
        load_system("<System")
    with pytest.raises(FileNotFoundError):
        load_system("missing.xml")
