"""Systems from XML: with the plugin where they need it, and without running code from the file."""

import io
import json
import os
import pickle
import pickletools
import subprocess
import sys
import uuid
from xml.etree import ElementTree

import forked_programs
import numpy as np
import openmm
import pytest
from mixed_systems import LAMBDA, mix
from mm_systems import SOLUTE, assert_same, cluster, energy_and_forces, mm_system

from torchmdx import save
from torchmdx.openmm import find, load_system
from torchmdx.openmm.find import pickled_reference
from torchmdx.openmm.native import native
from torchmdx.openmm.transport_python import restore
from torchmdx.runtime.former_paths import MOVED

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


class Hub:
    """A fake huggingface_hub with a potential under any name, which counts downloads."""

    def __init__(self, path) -> None:
        self.path, self.asked, self.is_cached = path, [], False

    def hf_hub_download(self, *, repo_id, filename, revision, local_files_only=False):
        if local_files_only and not self.is_cached:
            raise FileNotFoundError("not cached")
        if not local_files_only:
            self.asked.append(repo_id)
            self.is_cached = True
        return str(self.path)


@pytest.mark.parametrize("transport", ["python", NATIVE])
def test_a_name_in_the_file_starts_no_download(potential, tmp_path, monkeypatch, transport):
    monkeypatch.setenv("TORCHMDX_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    text, mixed, positions = saved(potential, tmp_path, transport)
    hub = Hub(tmp_path / "downloaded.safetensors")
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    (found,) = find(mixed)
    path, digest = found.checkpoint, found.evaluator.settings.sha256
    (tmp_path / "model.safetensors").rename(hub.path)
    changed = with_reference(text, lambda reference: reference.replace(path, "aceff-1.0"))
    errors = (FileNotFoundError, openmm.OpenMMException)
    for wrong in (changed, with_reference(text, lambda reference: reference.replace(path, "someone/anything"))):
        with pytest.raises(errors, match="is not on this machine with a known hash, and is not downloaded"):
            load_system(wrong)
    assert hub.asked == []
    other = with_reference(changed, lambda reference: reference.replace(digest, "1" * 64))
    with pytest.raises(ValueError, match=f"must be {'1' * 64}, got {digest}"):
        load_system(other, download=True)
    hub.asked.clear()
    hub.is_cached = False
    found = load_system(changed, download=True)
    assert energy_and_forces(found, positions)[0] == pytest.approx(energy_and_forces(mixed, positions)[0], rel=1e-12)
    assert hub.asked == ["Acellera/AceFF-1.0"]


@pytest.mark.parametrize("transport", ["python", NATIVE])
def test_the_file_that_is_loaded_is_the_one_whose_hash_was_checked(potential, tmp_path, monkeypatch, transport):
    """It is read once: between two reads it could change."""
    text, mixed, positions = saved(potential, tmp_path, transport)
    read = []
    plain = io.open

    def counting(file, mode="r", *args, **options):
        if str(file).endswith("model.safetensors"):
            read.append(mode)
        return plain(file, mode, *args, **options)

    monkeypatch.setattr(io, "open", counting)
    monkeypatch.setattr("builtins.open", counting)
    found = load_system(with_reference(text, str))
    assert read == ["rb"]
    assert energy_and_forces(found, positions)[0] == pytest.approx(energy_and_forces(mixed, positions)[0], rel=1e-12)


def with_reference(text, change):
    """The XML of a System with another reference to the potential, and another name, so that it is restored."""
    root = ElementTree.fromstring(text)
    for element in root.iter("Force"):
        if element.get("type") == "TorchmdxForce":
            element.set("reference", renamed(change(element.attrib["reference"])))
        elif element.get("type") == "PythonForce":
            reference = pickled_reference(element.attrib["function"])
            steps = {step.name for step, _, _ in pickletools.genops(bytes.fromhex(element.attrib["function"]))}
            selects = "NEWTRUE" in steps
            element.set("function", pickle.dumps(Call(renamed(change(reference)), selects), 4).hex())
    return ElementTree.tostring(root, encoding="unicode")


def python_forces(text):
    return [element for element in ElementTree.fromstring(text).iter("Force") if element.get("type") == "PythonForce"]


def renamed(reference):
    end = ".." * reference.endswith("..")
    return json.dumps(json.loads(reference.removesuffix("..")) | {"name": uuid.uuid4().hex}) + end


class Call:
    """Is pickled as a call of `restore`."""

    def __init__(self, *arguments) -> None:
        self.arguments = arguments

    def __reduce__(self):
        return restore, self.arguments


READS = """
import sys
from torchmdx.openmm import load_system
try:
    print(load_system(sys.stdin.read()).getNumParticles())
except ImportError as error:
    print(error)
"""


@pytest.mark.nightly
@pytest.mark.parametrize("compiler", [True, False])
def test_a_machine_where_the_plugin_was_never_compiled(potential, tmp_path, compiler):
    if native.unavailable(cuda=False) is not None:
        pytest.skip("needs a C++ compiler")
    text, _, _ = saved(potential, tmp_path, "native")
    environment = os.environ | {"TORCHMDX_CACHE": str(tmp_path / "cache")}
    if not compiler:
        environment |= {"CXX": "/nowhere/c++", "CC": "/nowhere/cc", "PATH": "/nowhere"}
    command = [*forked_programs.python(), "-c", READS]
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
    today, former = (f"torchmdx.openmm.transport_{name}" for name in ("python", "former"))
    assert len(today) == len(former)
    old = text.replace(today.encode().hex(), former.encode().hex())
    assert old != text
    with pytest.raises(ValueError, match="a function that is not one of torchmdx"):
        load_system(old)
    monkeypatch.setitem(MOVED, former, today)
    references = [
        [pickled_reference(element.attrib["function"]) for element in python_forces(written)] for written in (old, text)
    ]
    assert references[0] == references[1] != [None]
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
    with pytest.raises(ValueError, match="got invalid XML"):
        load_system("<System")
    with pytest.raises(FileNotFoundError):
        load_system("missing.xml")
