import importlib.util

import ase.io
import numpy as np
import pytest
import toys
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.emt import EMT

from torchmdx.commands import cli
from torchmdx.datasets.labelling.calculators import Choice
from torchmdx.datasets.labelling.conformers import conformers, require_rdkit
from torchmdx.datasets.labelling.dynamics import langevin, relax
from torchmdx.datasets.labelling.geometry import UnlabelledStructure
from torchmdx.datasets.labelling.labeller import Labeller
from torchmdx.datasets.labelling.normal_modes import normal_modes
from torchmdx.datasets.labelling.sampling import Molecule, Sampling, sample
from torchmdx.structures.units import BOLTZMANN


def nothing():
    pass


def made(start, calculator="emt", source=0, **options) -> list[UnlabelledStructure]:
    molecule = Molecule(source, start if isinstance(start, str) else None, None if isinstance(start, str) else start)
    return sample(molecule, Sampling(**options), Labeller(Choice(calculator)), nothing).geometries


def positions(geometries) -> np.ndarray:
    return np.array([geometry.positions for geometry in geometries])


@pytest.fixture
def water() -> UnlabelledStructure:
    return UnlabelledStructure.from_ase(molecule("H2O"))


@pytest.fixture
def relaxed() -> Atoms:
    atoms = molecule("H2O")
    atoms.calc = EMT()
    relax(atoms, nothing)
    return atoms


def test_conformers_are_distinct_molecules():
    found = conformers("OCCO", 20, seed=1)
    assert len(found) > 2
    assert [sorted(geometry.numbers) for geometry in found] == [[1] * 6 + [6, 6, 8, 8]] * len(found)
    spread = [np.linalg.norm(geometry.positions[0] - geometry.positions[3]) for geometry in found]
    assert max(spread) - min(spread) > 0.5  # oxygens beside each other and apart
    assert len(conformers("C", 20, seed=1)) == len(conformers("[He]", 5, seed=1)) == 1
    assert len(conformers("CCO", 20, seed=1)) == 2  # trans, and gauche with its mirror image
    assert conformers("CC(=O)[O-]", 1, seed=1)[0].charge == -1
    assert conformers("[Na+]", 1, seed=1, multiplicity=3)[0].multiplicity == 3


def test_conformers_need_rdkit(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"SMILES need RDKit, .*: pip install 'torchmdx\[label\]'"):
        require_rdkit()


def test_modes_of_a_diatomic_are_one_stretch():
    atoms = molecule("N2")
    atoms.calc = EMT()
    relax(atoms, nothing)
    modes = normal_modes(atoms, nothing)
    length, step = atoms.get_distance(0, 1), 1e-3
    energies = []
    for change in (-step, 0, step):
        atoms.set_distance(0, 1, length + change)
        energies.append(atoms.get_potential_energy())
    stiffness = (energies[0] - 2 * energies[1] + energies[2]) / step**2
    reduced = atoms.get_masses()[0] / 2
    wavenumber = np.sqrt(stiffness * 9648.5332 / reduced) / (2 * np.pi * 0.0299792458)  # eV/(Å² amu) in 1/ps²
    assert len(modes.wavenumbers) == 1
    assert modes.wavenumbers[0] == pytest.approx(wavenumber, rel=2e-3)


def test_modes_leave_out_motions_of_the_whole(relaxed):
    modes = normal_modes(relaxed, nothing)
    assert modes.directions.shape == (3, 9)
    assert (modes.wavenumbers > 100).all()
    np.testing.assert_allclose(modes.directions @ modes.directions.T, np.eye(3), atol=1e-10)
    moved = modes.displacement(np.random.default_rng(0), 300.0, 100.0)
    masses = relaxed.get_masses()[:, None]
    arms = relaxed.positions - relaxed.get_center_of_mass()
    np.testing.assert_allclose((masses * moved).sum(0), 0, atol=1e-10)
    np.testing.assert_allclose((masses * np.cross(arms, moved)).sum(0), 0, atol=1e-10)
    linear = molecule("CO2")
    linear.calc = EMT()
    assert normal_modes(linear, nothing).directions.shape == (4, 9)
    crystal = bulk("Cu", cubic=True)
    crystal.calc = EMT()
    assert normal_modes(crystal, nothing).directions.shape == (9, 12)


def test_normal_modes_hold_half_kt_each():
    start = UnlabelledStructure.from_ase(Atoms("CNO", [[0, 0, 0], [1.4, 0.2, 0], [0.5, 1.1, 0.3]]))
    temperature, num_modes, count = 50.0, 3, 1500
    found = made(start, "toys:Bonds", method="normal-modes", count=count, temperature=temperature)
    energies = [toys.energy_of_bonds(geometry.positions) for geometry in found]
    exact = num_modes * BOLTZMANN * temperature / 2  # and chi-squared distributed around that
    assert np.mean(energies) == pytest.approx(exact, rel=4 * np.sqrt(2 / num_modes / count))
    assert np.std(energies) == pytest.approx(exact * np.sqrt(2 / num_modes), rel=0.2)


def test_soft_modes_are_bounded(relaxed):
    modes = normal_modes(relaxed, nothing)
    rng = np.random.default_rng(1)
    free = np.mean([(modes.displacement(rng, 300.0, 1.0) ** 2).sum() for _ in range(300)])
    bound = np.mean([(modes.displacement(rng, 300.0, 1e5) ** 2).sum() for _ in range(300)])
    assert bound < 1e-2 * free


@pytest.mark.nightly
def test_dynamics_has_its_temperature():
    atoms = toys.frames(1)[0]
    atoms.info["charge"] = 0
    atoms.set_cell([50, 50, 50])  # which keeps the centre of mass free
    atoms.pbc = True
    atoms.calc = toys.Springs()
    steps = langevin(
        atoms,
        np.random.default_rng(3),
        nothing,
        temperature=500.0,
        timestep=1.0,
        friction=0.05,
        equilibration=200,
        spacing=20,
    )
    squares = np.mean([next(steps) ** 2 for _ in range(200)])
    assert toys.STIFFNESS * squares == pytest.approx(BOLTZMANN * 500, rel=0.15)


def test_dynamics_keeps_a_molecule_where_it_was(water):
    found = made(water, method="md", count=4, equilibration=50, spacing=20, temperature=500.0)
    masses = molecule("H2O").get_masses()
    centres = np.einsum("n,fnx->fx", masses, positions(found)) / masses.sum()
    np.testing.assert_allclose(centres, [centres[0]] * 4, atol=1e-9)
    assert abs(positions(found)[0] - positions(found)[1]).max() > 0.05


def test_rattle_has_its_width(water):
    moved = positions(made(water, method="rattle", count=300, rattle=0.03)) - water.positions
    assert moved.std() == pytest.approx(0.03, rel=0.06)
    assert abs(moved.mean()) < 0.003
    with pytest.raises(ValueError, match="lower --temperature or --rattle"):
        made(UnlabelledStructure.from_ase(bulk("Cu") * (3, 3, 3)), method="rattle", rattle=0.8)


@pytest.mark.parametrize("method", ["normal-modes", "md", "rattle"])
def test_the_seed_decides(water, method):
    options = dict(method=method, count=3) | (dict(equilibration=5, spacing=2) if method == "md" else {})
    first = positions(made(water, **options))
    np.testing.assert_array_equal(positions(made(water, **options)), first)
    np.testing.assert_array_equal(positions(made(water, **{**options, "count": 2})), first[:2])
    assert abs(positions(made(water, **options, seed=1)) - first).max() > 1e-3
    assert abs(positions(made(water, **options, source=1)) - first).max() > 1e-3


def test_the_seed_decides_on_conformers():
    options = dict(method="conformers", count=5)
    first = positions(made("OCCO", **options))
    np.testing.assert_array_equal(positions(made("OCCO", **options)), first)
    assert abs(positions(made("OCCO", **options, seed=1))[0] - first[0]).max() > 1e-3


def test_what_was_made_before_a_failure_is_kept(monkeypatch):
    class Tiring(EMT):
        left = 200

        def calculate(self, *arguments, **options):
            Tiring.left -= 1
            if Tiring.left < 0:
                raise RuntimeError("tired")
            super().calculate(*arguments, **options)

    monkeypatch.setattr(toys, "Tiring", Tiring, raising=False)
    molecule_ = Molecule(0, None, UnlabelledStructure.from_ase(molecule("N2")))
    labeller = Labeller(Choice("toys:Tiring"))
    sampling = Sampling(method="md", count=50, equilibration=10, spacing=10)
    found = sample(molecule_, sampling, labeller, nothing)
    assert 5 < len(found.geometries) < 20
    assert found.note == f"{len(found.geometries)} of 50 geometries of start 0: RuntimeError: tired"
    with pytest.raises(RuntimeError, match="tired"):
        sample(molecule_, sampling, labeller, nothing)


@pytest.mark.usefixtures("quick_workers")
@pytest.mark.nightly
@pytest.mark.slow
def test_the_command_samples_and_labels_whatever_the_number_of_workers(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    ase.io.write("start.xyz", molecule("H2O"))
    (tmp_path / "list.smi").write_text("N#N nitrogen\nF/C=C\\F not known to EMT\n")
    command = ["label", "start.xyz", "list.smi", "--smiles", "CO", "--calculator", "emt", "--sample", "normal-modes"]
    command += ["--count", "3", "--conformers", "2"]
    for workers in ("1", "2"):
        assert cli.main([*command, "-o", f"{workers}.xyz", "--workers", workers]) == 1
    assert (tmp_path / "1.xyz").read_bytes() == (tmp_path / "2.xyz").read_bytes()
    printed = capsys.readouterr().out
    assert "9 of 9 frames labelled, 1 failed" in printed
    assert "  F/C=C\\F: NotImplementedError: No EMT-potential for F" in printed
    assert "note: N#N: 1 distinct conformers instead of 2" in printed
    found = ase.io.read("1.xyz", ":")
    names = ["start.xyz:0", "N#N", "CO"]
    assert [atoms.info["origin"] for atoms in found] == [f"{name}:{number}" for name in names for number in range(3)]
    for atoms in found:
        stored, atoms.calc = atoms.calc.results, EMT()
        assert stored["energy"] == pytest.approx(atoms.get_potential_energy(), abs=1e-5)
        np.testing.assert_allclose(stored["forces"], atoms.get_forces(), atol=1e-5)


@pytest.mark.usefixtures("quick_workers")
@pytest.mark.nightly
def test_sampling_goes_on_by_molecule(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    starts = toys.write_frames("a.xyz", 4)
    command = ["label", "a.xyz", "-o", "out.xyz", "--sample", "rattle", "--count", "2", "--workers", "1"]
    command += ["--calculator", "toys:Springs"]
    monkeypatch.setattr("torchmdx.datasets.labelling.run.LabelStage.tasks", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cli.main(command)
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert cli.main([*command[:-1], "toys:Springs", "--seed", "1"]) == 2
    assert "got sampling's seed 1, was 0" in capsys.readouterr().err
    assert cli.main(command) == 0
    assert "sampled" not in capsys.readouterr().err  # that was done, and is not done again
    starts = [UnlabelledStructure.from_ase(atoms) for atoms in starts]
    wanted = [made(start, source=source, method="rattle", count=2) for source, start in enumerate(starts)]
    toys.assert_labelled("out.xyz", [geometry.atoms() for geometries in wanted for geometry in geometries])


def interrupted(stage):
    raise KeyboardInterrupt
    yield
