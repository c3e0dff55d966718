"""`--calculator pyscf`: its forces against finite differences, its energies against PySCF's own and published ones."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from ase.build import molecule

from torchmdx.datasets.labelling import calculators
from torchmdx.datasets.labelling.calculators import Choice
from torchmdx.datasets.labelling.convergence import UnconvergedSCF
from torchmdx.datasets.labelling.dft import Dft, DftSettings, take_gpu
from torchmdx.datasets.labelling.geometry import UnlabelledStructure
from torchmdx.datasets.labelling.labeller import Labeller

HARTREE, BOHR = 27.211386, 0.52917721  # eV, Å
needs_pyscf = pytest.mark.usefixtures("pyscf")
HF = {"xc": "hf", "basis": "sto-3g"}


@pytest.fixture
def pyscf():
    return pytest.importorskip("pyscf")


def water(charge=0.0, multiplicity=None) -> UnlabelledStructure:
    atoms = molecule("H2O")
    atoms.rattle(0.05, seed=1)
    return UnlabelledStructure.from_ase(atoms, charge, multiplicity)


def labels(structure, **options):
    return Labeller(Choice("pyscf", options)).labels(structure)


def error_of_forces(structure, component=(1, 2), step=2e-3, least_sum=np.inf, **options) -> float:
    """Largest difference between a force and the five-point difference of energies, eV/Å.

    least_sum: What the sum of all forces must be below, eV/Å.
    """
    options = {"conv_tol": 1e-11, **options}
    forces, energies = labels(structure, **options).forces, []
    assert np.abs(forces.sum(0)).max() < least_sum
    for steps in (-2, -1, 1, 2):
        positions = structure.positions.copy()
        positions[component] += steps * step
        energies.append(labels(structure.moved(positions), **options).energy)
    low, lower, upper, high = energies
    return abs(forces[component] + (low - 8 * lower + 8 * upper - high) / (12 * step))


@pytest.mark.nightly_for("options2-1-None")
@needs_pyscf
@pytest.mark.parametrize(
    ("options", "charge", "multiplicity"),
    [
        (HF, 0, None),
        ({"xc": "pbe", "basis": "6-31g", "grid_level": 1}, 0, None),
        ({"xc": "pbe0-d3bj", "basis": "6-31g", "auxbasis": "def2-universal-jkfit", "grid_level": 1}, 1, None),
    ],
)
def test_forces_are_the_derivative_of_the_energy(options, charge, multiplicity):
    assert error_of_forces(water(charge, multiplicity), **options) < 1e-5


@needs_pyscf
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("xc", "charge", "multiplicity", "auxbasis"),
    [
        # Every pair of a functional with a kind of shell, and of either with an auxiliary basis.
        (xc, *shell, (None, "def2-universal-jkfit")[(number + place) % 2])
        for number, xc in enumerate(("pbe", "b3lyp-d3bj", "wb97m-d3bj", "r2scan-d4", "wb97m-v"))
        for place, shell in enumerate(((0, None), (0, 3), (1, None)))
    ],
)
def test_forces_of_functionals_are_derivatives(xc, charge, multiplicity, auxbasis):
    options = {"xc": xc, "basis": "6-31g", "auxbasis": auxbasis, "grid_level": 1, "nlc_grid_level": 0}
    # The grid moves with the atoms: without its response, forces on all atoms add up to 1e-3 eV/Å.
    assert error_of_forces(water(charge, multiplicity), least_sum=1e-8, **options) < 3e-5


@needs_pyscf
@pytest.mark.nightly
def test_heavy_atoms_get_the_core_potentials_of_their_basis(pyscf):
    iodide = UnlabelledStructure.from_ase(Atoms("HI", [[0, 0, 0], [0, 0.1, 1.6]]))
    from pyscf import gto, scf

    mol = gto.M(atom=[("H", (0, 0, 0)), ("I", (0, 0.1, 1.6))], basis="def2-svp", ecp={"I": "def2-svp"}, parse_arg=False)
    wanted = scf.RHF(mol).run(verbose=0)
    found = labels(iodide, xc="hf", basis="def2-svp")
    assert found.energy == pytest.approx(wanted.e_tot * HARTREE, abs=1e-3)
    assert mol.nelectron == 26  # 28 of iodine are in its core
    assert error_of_forces(iodide, xc="hf", basis="def2-svp") < 1e-5


@needs_pyscf
def test_energies_are_those_of_pyscf_and_of_the_literature(pyscf):
    from pyscf import dft, gto

    structure = water(1)
    mol = gto.M(
        atom=list(zip("OHH", structure.positions.tolist(), strict=True)),
        basis="6-31g",
        charge=1,
        spin=1,
        parse_arg=False,
    )
    wanted = dft.UKS(mol, xc="pbe").run(conv_tol=1e-10, verbose=0).e_tot
    assert labels(structure, xc="pbe", basis="6-31g").energy == pytest.approx(wanted * HARTREE, abs=1e-4)
    hydrogen = UnlabelledStructure.from_ase(Atoms("H"))
    found = labels(hydrogen, xc="hf", basis="sto-3g")
    assert found.energy == pytest.approx(-0.46658185 * HARTREE, abs=1e-5)  # Hehre, Stewart and Pople 1969
    np.testing.assert_allclose(found.forces, 0, atol=1e-9)


@needs_pyscf
def test_dispersion_by_name_or_option_is_the_same_and_attracts():
    pair = UnlabelledStructure.from_ase(Atoms("Ne2", [[0, 0, 0], [0, 0, 3.2]]))
    common = {"basis": "sto-3g", "grid_level": 0}
    bare, named, given = (
        labels(pair, xc=xc, **common, **more).energy
        for xc, more in (("pbe", {}), ("pbe-d3bj", {}), ("pbe", {"dispersion": "d3bj"}))
    )
    assert named == pytest.approx(given, abs=1e-9)
    assert -0.05 < named - bare < -1e-3


@needs_pyscf
def test_density_fitting_is_near_and_not_equal():
    exact, fitted = (labels(water(), **HF, **more).energy for more in ({}, {"auxbasis": "def2-universal-jkfit"}))
    assert 1e-7 < abs(exact - fitted) < 5e-3


@needs_pyscf
def test_an_scf_that_does_not_converge_has_no_label():
    with pytest.raises(UnconvergedSCF, match=r"to conv_tol=1e-09 hartree within max_cycle=1 cycles, it did not \(last"):
        labels(water(), **HF, max_cycle=1)


@needs_pyscf
def test_the_command_line_is_not_read(tmp_path, monkeypatch):
    """PySCF takes -o for the file of its log and -v for its loudness, from any program's arguments."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["torchmdx", "-o", "labelled.xyz", "-v", "9"])
    labels(water(), **HF)
    assert os.listdir(tmp_path) == []


@needs_pyscf
def test_labels_do_not_depend_on_what_came_before():
    labeller = Labeller(Choice("pyscf", {**HF, "conv_tol": 1e-4}))
    structures = [water().moved(water().positions * scale) for scale in (1.2, 1.0)]
    after, alone = [labeller.labels(structure) for structure in structures][-1], labels(water(), **HF, conv_tol=1e-4)
    np.testing.assert_allclose(after.forces, alone.forces, atol=1e-12)


@needs_pyscf
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"xc": "pbbe"}, "xc of pyscf must be one that PySCF knows, got 'pbbe'"),
        ({"basis": "def2-svpp"}, "basis of pyscf must be one that PySCF knows, got 'def2-svpp'"),
        ({"auxbasis": "nothing"}, "auxbasis of pyscf must be one that PySCF knows, got 'nothing'"),
        ({"xc": "wb97x-d3"}, "xc of pyscf must be one that PySCF knows, got 'wb97x-d3': wb97x-d3 is not supported"),
        ({"xc": "lda", "dispersion": "d4"}, "dispersion of pyscf must be one that PySCF knows, got 'd4 of lda'"),
    ],
)
def test_names_that_pyscf_does_not_know(options, words):
    with pytest.raises(ValueError, match=words):
        Choice("pyscf", {**HF, **options}).require()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"basis": "sto-3g"}, "must have the options xc and basis, got no xc: .* --calculator-option xc=wb97m-d3bj"),
        ({"xc": "pbe"}, "got no basis: .* --calculator-option basis=def2-tzvpp"),
        ({**HF, "grid": 3}, "options of pyscf must be among auxbasis, basis, .*, got 'grid'"),
        ({**HF, "grid_level": 10}, "grid_level of pyscf must be an integer from 0 to 9, got 10"),
        ({**HF, "nlc_grid_level": 1.5}, "nlc_grid_level of pyscf must be an integer from 0 to 9, got 1.5"),
        ({**HF, "basis": 631}, "basis of pyscf must be a name, got 631"),
        ({**HF, "auxbasis": True}, "auxbasis of pyscf must be a name, got True"),
        ({**HF, "dispersion": "d2"}, "dispersion of pyscf must be one of d3bj, .*, got 'd2'"),
        ({**HF, "conv_tol": 0}, "conv_tol of pyscf must be > 0 and < 1 hartree, got 0"),
        ({**HF, "max_cycle": 0}, "max_cycle of pyscf must be an integer >= 1, got 0"),
        ({**HF, "device": "tpu"}, "device of pyscf must be one of auto, cpu, gpu, got 'tpu'"),
    ],
)
def test_options_are_checked(options, words):
    with pytest.raises(ValueError, match=words):
        Choice("pyscf", options).require()


@pytest.mark.parametrize(
    ("structure", "words"),
    [
        (water(1, 1), r"the multiplicity must be 2, 4, \.\.\. with an odd number of electrons \(charge 1\), got 1"),
        (water(0.5), "the charge must be an integer for DFT, got 0.5"),
        (UnlabelledStructure.from_ase(Atoms("H"), 1), r"needs at least one electron, .* got 0 electrons \(charge 1\)"),
        (UnlabelledStructure.from_ase(Atoms("H"), 0, 4), "got 1 electrons .* with multiplicity 4"),
        (
            UnlabelledStructure.from_ase(Atoms("He", pbc=(1, 0, 0), cell=[5, 5, 5])),
            "no periodic directions; got pbc T F F",
        ),
    ],
)
def test_structures_that_cannot_be_labelled(structure, words):
    with pytest.raises(ValueError, match=words):
        Dft(DftSettings(**HF), structure)


def test_missing_packages_say_what_to_install(monkeypatch):
    monkeypatch.setattr(calculators.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pyscf needs PySCF, which is not installed: pip install 'torchmdx\[dft\]'"):
        Choice("pyscf", HF).require()
    with pytest.raises(ImportError, match="device=gpu of pyscf needs GPU4PySCF, .*: pip install gpu4pyscf-cuda12x"):
        DftSettings(**HF, device="gpu").on_gpu()


def test_devices(monkeypatch):
    from torchmdx.datasets.labelling import dft

    monkeypatch.setattr(dft.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(dft.torch.cuda, "device_count", lambda: 0)
    assert not DftSettings(**HF).on_gpu()
    assert Choice("pyscf", HF).num_workers is None
    with pytest.raises(ValueError, match="device=gpu of pyscf needs a CUDA GPU, got none"):
        DftSettings(**HF, device="gpu").on_gpu()
    monkeypatch.setattr(dft.torch.cuda, "device_count", lambda: 2)
    assert DftSettings(**HF).on_gpu()
    assert not DftSettings(**HF, device="cpu").on_gpu()
    assert Choice("pyscf", HF).num_workers == 2
    assert Choice("gfn2-xtb").num_workers is None
    for before, number, after in ((None, 3, "1"), ("4,6,7", 2, "7"), ("4,6,7", 3, "4")):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if before is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", before)
        take_gpu(number)
        assert os.environ["CUDA_VISIBLE_DEVICES"] == after
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")


@needs_pyscf
def test_gpu4pyscf_takes_the_place_of_pyscf(pyscf, monkeypatch):
    """With PySCF under its name: the same calls reach it, the auxiliary basis by name among them."""
    from types import ModuleType

    from pyscf import dft, scf

    fitted = []

    class Fitting(dft.rks.RKS):
        def density_fit(self, auxbasis=None, **options):
            fitted.append(auxbasis)
            return super().density_fit(auxbasis=auxbasis, **options)

    package = ModuleType("gpu4pyscf")
    package.dft, package.scf = ModuleType("gpu4pyscf.dft"), scf
    package.dft.RKS, package.dft.UKS = Fitting, dft.UKS
    options = {"xc": "pbe", "basis": "sto-3g", "auxbasis": "weigend", "grid_level": 0}
    here = labels(water(), **options)
    assert fitted == []
    monkeypatch.setitem(sys.modules, "gpu4pyscf", package)
    monkeypatch.setattr(DftSettings, "on_gpu", lambda self: self.device != "cpu")
    there = labels(water(), **options)
    assert fitted == ["weigend"]
    np.testing.assert_allclose(there.forces, here.forces, atol=1e-7)


@needs_pyscf
def test_settings_tell_levels_of_theory_apart_and_devices_not():
    settings = Choice("pyscf", HF).settings()
    assert settings == Choice("pyscf", {**HF, "grid_level": 3, "device": "cpu"}).settings()
    assert "version of PySCF" in settings["options of the calculator"]
    for more in ({"xc": "pbe"}, {"basis": "6-31g"}, {"auxbasis": "weigend"}, {"grid_level": 4}, {"conv_tol": 1e-8}):
        assert settings != Choice("pyscf", {**HF, **more}).settings()
    assert (
        "version of pyscf-dispersion" in Choice("pyscf", {**HF, "xc": "pbe-d4"}).settings()["options of the calculator"]
    )


@needs_pyscf
@pytest.mark.nightly
def test_a_whole_run_names_frames_that_did_not_converge(tmp_path, monkeypatch, capsys):
    import ase.io

    from torchmdx.commands import cli

    monkeypatch.chdir(tmp_path)
    cation = Atoms("O2", [[0, 0, 0], [0, 0, 1.2]], info={"charge": 1})
    ase.io.write("a.xyz", [molecule("H2O"), cation, molecule("H2")])
    line = ["label", "a.xyz", "-o", "out.xyz", "--calculator", "pyscf", "--workers", "2"]
    for key, value in (HF | {"max_cycle": 3}).items():
        line += ["--calculator-option", f"{key}={value}"]
    status = cli.main(line)
    printed = capsys.readouterr().out
    found = {atoms.info["origin"] for atoms in ase.io.read("out.xyz", ":")}
    assert status == 1
    assert "a.xyz:2" in found
    failed = Path("out.xyz.failed.csv").read_text()
    assert "UnconvergedSCF: the SCF must converge to conv_tol=1e-09 hartree within max_cycle=3" in failed
    assert failed.count("UnconvergedSCF") == 3 - len(found) >= 1
    assert "UnconvergedSCF" in printed
