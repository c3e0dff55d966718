"""The content of a force of the plugin, from Python; reading it from XML."""

import subprocess

import forked_programs
import openmm
import pytest
from openmm import app

from torchmdx.openmm import add_potential
from torchmdx.openmm.native import build, native
from torchmdx.openmm.native.saved_force import request_native_derivative, saved_force
from torchmdx.openmm.references import living_evaluator
from torchmdx.openmm.transport_native import preload_plugin

REASON = native.unavailable(cuda=False)
pytestmark = pytest.mark.skipif(REASON is not None, reason=f"no plugin: {REASON}")


def methane() -> tuple[openmm.System, app.Topology]:
    topology, system = app.Topology(), openmm.System()
    residue = topology.addResidue("MET", topology.addChain())
    for symbol in "CHHHH":
        topology.addAtom(symbol, app.Element.getBySymbol(symbol), residue)
        system.addParticle(12.0)
    return system, topology


def test_particles_parameter_and_reference(potential):
    system, topology = methane()
    options = dict(device="cpu", transport="native")
    force = add_potential(system, topology, potential, [4, 2], scale_parameter="s", **options)
    saved = saved_force(force.force)
    assert (saved.particles, saved.scale_parameter) == ((4, 2), "s")
    assert living_evaluator(saved.reference) is force.evaluator
    assert saved_force(openmm.HarmonicBondForce()) is None
    with pytest.raises(AssertionError, match="with the parameter 'other' was expected"):
        request_native_derivative(force.force, "other")


READS = """
import sys
import openmm
import torchmdx.openmm
print(openmm.XmlSerializer.deserialize(sys.stdin.read()).getNumForces())
"""


@pytest.mark.nightly
def test_importing_the_front_door_suffices_to_read_xml():
    system, topology = methane()
    add_potential(system, topology, None, device="cpu", transport="native")
    text = openmm.XmlSerializer.serialize(system)
    done = subprocess.run(
        [*forked_programs.python(), "-c", READS], input=text, capture_output=True, text=True, check=False
    )
    assert done.stdout == "1\n", done.stderr


def test_preloading_compiles_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHMDX_CACHE", str(tmp_path))
    monkeypatch.setattr(build, "run_compiler", None)  # would raise if it was called
    build.plugin.cache_clear()
    assert native.load_cached(cuda=False) is False
    assert not list(tmp_path.glob("*.so"))
    monkeypatch.undo()
    build.plugin.cache_clear()
    assert native.load_cached(cuda=False) is True
    assert preload_plugin() in (True, False)
