"""What a continuation of a recorded run must share with it."""

import json

import pytest
import torch
from ase.build import molecule

from torchmdx import Dynamics, System
from torchmdx.dynamics.barostat import CellRescaling
from torchmdx.dynamics.integrators import Bussi, Langevin
from torchmdx.dynamics.restraints import Distance
from torchmdx.dynamics.run.continuation import differences
from torchmdx.dynamics.run.recording import Recording

TINY = dict(num_layers=0, num_channels=4, num_radial=4, dtype=torch.float32)
BOX = molecule("H2O", cell=[9, 9, 9], pbc=True)


@pytest.fixture
def make(make_potential):
    potentials = {seed: make_potential(seed=seed, **TINY) for seed in (0, 1)}

    def dynamics(atoms=BOX, weights=0, **options):
        return Dynamics(potentials[weights], [System.from_ase(atoms)] * 2, **{"seed": 1, **options})

    return dynamics


def other(change) -> dict:
    atoms = BOX.copy()
    change(atoms)
    return {"atoms": atoms}


CHANGES = {
    "potential": (dict(weights=1), r"potential \(SHA-256\) \w{16}, was \w{16}$"),
    "temperature": (dict(temperature=900.0), r"temperatures in K of structure 0 900.0, was 300.0"),
    "one temperature": (dict(temperature=[300.0, 310.0]), r"temperatures in K of structure 1 310.0, was 300.0"),
    "timestep": (dict(timestep=1.0), r"timestep in fs 1.0, was 0.5"),
    "seed": (dict(seed=2), r"seeds"),
    "integrator": (dict(integrator=Bussi()), r"integrator Bussi\(relaxation=0.1\), was Langevin\(friction=1.0\)"),
    "friction": (dict(integrator=Langevin(2.0)), r"integrator Langevin\(friction=2.0\), was Langevin\(friction=1.0\)"),
    "cell": (other(lambda a: a.set_cell([6, 9, 9])), r"cells in Å of structure 0 \[\[6.0, .*, was \[\[9.0, "),
    "pbc": (other(lambda a: setattr(a, "pbc", [1, 1, 0])), r"periodic directions of .* False\], was \[True"),
    "masses": (dict(hydrogen_mass=3.0), r"masses in amu \(least and greatest\) 3 to .*, was 1.008 to 15.999"),
    "atoms": (other(lambda a: setattr(a, "numbers", [16, 1, 1])), r"formulas of structure 0 H2S, was H2O"),
    "order": (other(lambda a: setattr(a, "numbers", [1, 8, 1])), r"atoms \(SHA-256 of elements, masses and which"),
    "frozen": (dict(frozen=[0]), r"frozen atoms 1, was 0"),
    "barostat": (dict(barostat=CellRescaling(1.0)), r"barostat CellRescaling\(.*\), was None"),
    "restraint": (dict(restraints=[Distance((0, 1), 1.0, 1.0)]), r"restraints \(SHA-256\) \w+, was None"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:cells of trajectories")
@pytest.mark.parametrize("name", CHANGES)
def test_each_setting_is_compared_and_both_values_are_named(make, tmp_path, name):
    options, words = CHANGES[name]
    prefix = str(tmp_path / "run")
    Recording.begin(make(), prefix).close()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=f"a restart needs the settings of the run, got .*{words}"):
        Recording.resume(make(**options), prefix)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    Recording.resume(make(), prefix).close()


@pytest.mark.parametrize("name", ["barostat", "restraint"])
def test_what_a_continuation_lacks_is_named_as_well(make, tmp_path, name):
    options, _ = CHANGES[name]
    Recording.begin(make(**options), str(tmp_path / "run")).close()
    with pytest.raises(ValueError, match=r"got (barostat|restraints \(SHA-256\)) None, was "):
        Recording.resume(make(), str(tmp_path / "run"))


def test_a_run_of_an_earlier_version_continues_with_a_warning(make, tmp_path):
    prefix, path = str(tmp_path / "run"), tmp_path / "run.json"
    with Recording.begin(make(), prefix) as recording:
        recording.run(3)
    settings = json.loads(path.read_text())
    for name in ("potential (SHA-256)", "cells in Å", "barostat", "restraints (SHA-256)"):
        del settings[name]
    path.write_text(json.dumps(settings))
    with pytest.warns(UserWarning, match=r"did not write potential \(SHA-256\), cells in Å: whether they are"):
        Recording.resume(make(), prefix).close()
    with pytest.raises(ValueError, match="got timestep in fs 1.0, was 0.5$"):
        Recording.resume(make(timestep=1.0), prefix)


def test_rounding_in_files_of_structures_does_not_count(make, tmp_path):
    Recording.begin(make(), str(tmp_path / "run")).close()
    Recording.resume(make(**other(lambda a: a.set_cell([9.00000001, 9, 9]))), str(tmp_path / "run")).close()


def test_differences():
    assert differences({"a": 1, "b": [1, 2]}, {"a": 1, "b": [1, 2]}) == ([], [])
    assert differences({"a": 1}, {"a": 2, "c": 3}) == (["a 1, was 2", "c None, was 3"], [])
    assert differences({"b": [1, 2, 3]}, {"b": [1, 5, 6]}) == (["b of structure 1 2, was 5"], [])
    assert differences({"b": [1, 2]}, {"b": [1]}) == (["b [1, 2], was [1]"], [])
    assert differences({"cell in Å": [[1], [2]]}, {"cell in Å": [[1], [3]]})[0] == [
        "cell in Å [[1], [2]], was [[1], [3]]"
    ]
    assert differences({"formulas": ["H2"], "a": 1}, {"a": 1}) == ([], ["formulas"])
