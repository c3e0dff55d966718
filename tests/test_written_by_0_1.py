"""Files that users of version 0.1 have are read as that version read them; `data/written_by_0_1/make.py` made them."""

import json
import pickle
import re
import shutil
from pathlib import Path

import ase.io
import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import molecule

import torchmdx
from torchmdx import System
from torchmdx.commands.cli import main
from torchmdx.datasets.store import Store
from torchmdx.dynamics.dynamics import Dynamics
from torchmdx.dynamics.run.recording import Recording
from torchmdx.dynamics.trajectory_formats import TrajectoryFormat
from torchmdx.models.priors.coulomb import CoulombConfig
from torchmdx.models.priors.d2 import D2Config
from torchmdx.models.priors.zbl import ZBLConfig
from torchmdx.report.view.dcd import open_dcd

WRITTEN = Path(__file__).parent / "data" / "written_by_0_1"
EXPECTED = json.loads((WRITTEN / "expected.json").read_text())
CELL = [[3.9, 0, 0], [0.7, 3.7, 0], [-0.5, 0.9, 4.1]]
STRUCTURES = {
    "molecule": molecule("CH3OH"),
    "cation": Atoms(molecule("H2O"), info={"charge": 1}),
    "crystal": Atoms("OCH", [[0.1, 0.3, 0.1], [1.6, 1.3, 0.9], [0.6, 1.9, 2.0]], cell=CELL, pbc=True),
}


@pytest.fixture
def written(tmp_path, monkeypatch) -> Path:
    """A copy of the files, in which the test runs."""
    shutil.copytree(WRITTEN, tmp_path / "written")
    monkeypatch.chdir(tmp_path / "written")
    return tmp_path / "written"


def assert_energies(potential, expected, tolerance=1e-9):
    for name, structure in STRUCTURES.items():
        structure = structure.copy()
        structure.calc = torchmdx.Calculator(potential, device="cpu", dtype="float64")
        assert structure.get_potential_energy() == pytest.approx(expected[name]["energy"], abs=tolerance)
        np.testing.assert_allclose(structure.get_forces(), expected[name]["forces"], atol=10 * tolerance)


@pytest.mark.filterwarnings("ignore:this potential truncates the Coulomb energy of periodic systems")
@pytest.mark.parametrize("name", ["tensornet", "tensornet2", "gated", "ensemble"])
def test_potentials_have_the_energies_that_they_had(name):
    assert_energies(torchmdx.load(WRITTEN / f"{name}.safetensors"), EXPECTED["energies"][name])


def test_settings_of_potentials_are_those_that_were_written():
    tensornet, tensornet2, gated = (
        torchmdx.load(WRITTEN / f"{name}.safetensors") for name in ("tensornet", "tensornet2", "gated")
    )
    zbl = ZBLConfig(cutoff=1.2)
    d2 = D2Config(cutoff=5.0, c6=tuple(3.0 + k for k in range(9)), radii=tuple(1.2 + 0.01 * k for k in range(9)))
    assert tensornet.prior_configs == (zbl, d2)
    assert tensornet2.prior_configs == (zbl, CoulombConfig(cutoff=5.0, weights=(1.0, 0.5)))
    card = tensornet.card
    assert (card.name, card.licence, card.elements, card.charges) == ("small", "MIT", (1, 6, 8), (0.0, 1.0))
    assert (gated.config.head, gated.config.radial_basis, gated.config.charge_factor) == ("gated", "bessel", False)
    members = torchmdx.load(WRITTEN / "ensemble.safetensors")
    assert [member.config for member in members] == [tensornet.config, tensornet2.config]


def test_a_store_holds_the_frames_that_were_packed():
    frames = Store.open(WRITTEN / "store").gather(np.arange(12))
    np.testing.assert_allclose(frames.energy, EXPECTED["store"], rtol=1e-12)
    assert frames.counts.tolist() == [6, 6, 6, 3] * 3
    atoms = Store.open(WRITTEN / "store").gather([3])
    np.testing.assert_allclose(atoms.cell[0], CELL)
    assert np.abs(atoms.positions - STRUCTURES["crystal"].positions).max() <= 0.05
    assert atoms.atomic_numbers.tolist() == [8, 6, 1]


@pytest.mark.parametrize(
    ("kind", "name", "integrator"), [("dcd", "molecule", "langevin"), ("hdf5", "crystal", "bussi")]
)
def test_a_recorded_run_is_continued_as_it_would_have_been(written, kind, name, integrator):
    if kind == "hdf5":
        pytest.importorskip("h5py")
    structure, expected = System.from_ase(STRUCTURES[name]), EXPECTED["recordings"][kind]
    settings = dict(integrator=integrator, timestep=0.5, temperature=300, seed=3)
    dynamics = Dynamics(torchmdx.load("tensornet.safetensors"), structure, **settings)
    prefix, trajectory = f"recorded_{kind}", TrajectoryFormat(kind)
    with pytest.warns(UserWarning, match="is of an earlier version, which did not write potential"):
        recording = Recording.resume(dynamics, prefix, save_every=2, log_every=5, trajectory=trajectory)
    with recording:
        np.testing.assert_allclose(dynamics.snapshot().positions, expected["at_10"], atol=1e-9)
        recording.run(10)
    np.testing.assert_allclose(dynamics.snapshot().positions, expected["at_20"], atol=1e-6)
    assert Path(f"{prefix}.log").read_text().splitlines()[-1].startswith("20,")
    frames = _frames(prefix, kind)
    assert len(frames) == 11
    for frame, positions in ((0, STRUCTURES[name].positions), (5, expected["at_10"]), (10, expected["at_20"])):
        np.testing.assert_allclose(frames[frame], positions, atol=1e-5)


def _frames(prefix, kind):
    """Positions [F,N,3] in Å."""
    if kind == "dcd":
        file = open_dcd(f"{prefix}.dcd")
        return file.read(np.arange(file.num_frames))[0]
    import h5py

    with h5py.File(f"{prefix}.h5") as file:
        return 10 * file["coordinates"][()]


@pytest.mark.filterwarnings("ignore:this potential was trained on total charges of 0 e, got ")
def test_a_training_run_is_continued_as_it_would_have_been(written):
    before = torchmdx.load("training/last.safetensors").state_dict()
    assert main(["train", "training.yaml", "--resume", "--training.epochs", "3"]) == 0
    last = torchmdx.load("training/last.safetensors")
    assert any(not torch.equal(before[name], value) for name, value in last.state_dict().items())
    assert len(Path("training/epochs.csv").read_text().splitlines()) == 4
    assert_energies(last, EXPECTED["training"], 1e-7)


@pytest.mark.parametrize("name", ["plain", "scaled"])
def test_openmm_systems_with_the_python_transport_are_restored(name):
    """Their pickles name `torchmdx.openmm.transport_python.restore`; OpenMM crashes if the path is gone."""
    openmm = pytest.importorskip("openmm")
    from torchmdx.openmm import load_system

    text = (WRITTEN / f"openmm_{name}.xml").read_text()
    for system in (load_system(text), openmm.XmlSerializer.deserialize(text)):
        reference = openmm.Platform.getPlatformByName("Reference")
        context = openmm.Context(system, openmm.VerletIntegrator(0.001), reference)
        context.setPositions(STRUCTURES["molecule"].positions / 10)
        energy = context.getState(getEnergy=True).getPotentialEnergy()._value
        assert energy == pytest.approx(EXPECTED["openmm"][name], rel=1e-9)


def test_an_openmm_system_with_a_precision_that_is_gone_is_restored_in_float32():
    openmm = pytest.importorskip("openmm")
    from torchmdx.openmm import find, load_system
    from torchmdx.openmm.find import pickled_reference
    from torchmdx.openmm.transport_python import Unrestored

    text = (WRITTEN / "openmm_plain.xml").read_text()
    function = re.search('function="([0-9a-f]+)"', text)[1]
    reference = pickled_reference(function).replace("float64", "half")
    assert reference != pickled_reference(function)
    saved = pickle.dumps(Unrestored(reference, False, "")).hex()
    with pytest.warns(UserWarning, match="precision 'half' was removed.* is evaluated in float32") as warned:
        system = load_system(text.replace(function, saved))
    assert len({str(warning.message) for warning in warned}) == 1
    context = openmm.Context(system, openmm.VerletIntegrator(0.001), openmm.Platform.getPlatformByName("Reference"))
    context.setPositions(STRUCTURES["molecule"].positions / 10)
    energy = context.getState(getEnergy=True).getPotentialEnergy()._value
    assert energy == pytest.approx(EXPECTED["openmm"]["plain"], rel=1e-6)
    assert find(system)


@pytest.mark.filterwarnings("default:.*md.json. is of an earlier version")
def test_a_run_of_torchmdx_md_is_continued_as_it_would_have_been(written, capsys):
    pytest.importorskip("openmm")
    options = ["--model", "tensornet.safetensors", "--engine", "openmm", "--platform", "Reference", "--device", "cpu"]
    options += ["--transport", "python", "--precision", "float64", "--save-every", "3", "--log-every", "3"]
    options += ["--seed", "5", "--no-page", "--ensemble", "nve", "--timestep", "0.5"]
    assert main(["md", "methanol.xyz", "-o", "md", "--steps", "12", "--restart", *options]) == 0
    assert "'md.json' is of an earlier version, which did not write cell in Å" in capsys.readouterr().err
    np.testing.assert_allclose(ase.io.read("md.final.xyz").positions, EXPECTED["md"], atol=1e-6)
