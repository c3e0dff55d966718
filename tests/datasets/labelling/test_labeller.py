"""ORCA, CP2K, VASP and Quantum ESPRESSO through ASE, as docs/label_dft.md sets them up, with stand-ins for them."""

import csv
import os
import sys
from collections import Counter
from pathlib import Path

import ase.io
import numpy as np
import programs
import pytest
import toys
from documents.blocks import blocks_of

from torchmdx.datasets.labelling.calculators import Choice
from torchmdx.datasets.labelling.geometry import UnlabelledStructure
from torchmdx.datasets.labelling.labeller import Labeller
from torchmdx.datasets.labelling.serve import one_line

pytestmark = pytest.mark.usefixtures("quick_workers")
NAMES = ("orca", "cp2k", "vasp", "espresso")
PERIODIC = ("cp2k", "vasp", "espresso")
OUTPUTS = {"orca": "orca.engrad", "cp2k": "cp2k.inp", "vasp": "vasprun.xml", "espresso": "espresso.pwo"}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for block in blocks_of("docs/label_dft.md"):
        if "file" in block.marks:
            Path(block.marks["file"]).write_text(block.text)
            monkeypatch.delitem(sys.modules, block.marks["file"].removesuffix(".py"), raising=False)
    for element in ("H", "C", "O"):  # VASP's, which ASE looks for
        place = tmp_path / "potentials" / "potpaw_PBE" / element
        place.mkdir(parents=True)
        (place / "POTCAR").write_text(f"  PAW_PBE {element}\n")
    monkeypatch.setenv("VASP_PP_PATH", str(tmp_path / "potentials"))
    return tmp_path


def choice(program, faults="") -> Choice:
    command = f"{sys.executable} {programs.__file__} {program} {Path('runs').resolve()} {faults or ','}"
    return Choice(f"{program}_calculator:calculator", {"command": command})


def structure(program, number=1, charge=0) -> UnlabelledStructure:
    atoms = toys.frames(number + 1)[number]
    if program in PERIODIC:
        atoms.set_cell([9.0, 9.0, 9.0])
        atoms.pbc = True
    return UnlabelledStructure.from_ase(atoms, charge=charge)


def runs() -> list[str]:
    return Path("runs").read_text().splitlines()


@pytest.mark.nightly_for("vasp")
@pytest.mark.parametrize("program", NAMES)
def test_labels_are_what_the_program_wrote_in_one_run(program):
    geometry = structure(program)
    labeller = Labeller(choice(program), Path("out.files"))
    found = labeller.labels(geometry, "0-1")
    energy = toys.STIFFNESS / 2 * (geometry.positions**2).sum()
    assert found.energy == pytest.approx(energy, rel=1e-7)
    np.testing.assert_allclose(found.forces, -toys.STIFFNESS * geometry.positions, rtol=1e-6, atol=1e-8)
    if program in PERIODIC:
        np.testing.assert_allclose(found.stress, programs.STRESS, rtol=1e-6, atol=1e-9)
    else:
        assert found.stress is None
    assert runs() == [f"{program} 1"]
    assert (Path("out.files/0-1") / OUTPUTS[program]).is_file()
    labeller.labels(structure(program, 2), "0-2")
    assert (Path("out.files/0-2") / OUTPUTS[program]).is_file()
    assert runs() == [f"{program} 1", f"{program} 2"]


@pytest.mark.parametrize("program", ["orca", "cp2k"])
def test_the_charge_of_each_frame_reaches_the_program(program):
    labeller = Labeller(choice(program), Path("out.files"))
    neutral = labeller.labels(structure(program), "0-0").energy
    assert labeller.labels(structure(program, charge=-2), "0-1").energy == pytest.approx(neutral - 2, abs=1e-6)


def test_the_multiplicity_of_each_frame_reaches_the_program():
    labeller = Labeller(choice("orca"), Path("out.files"))
    for number, (charge, multiplicity, given) in enumerate([(0, None, 2), (1, None, 1), (1, 3, 3)]):
        made = toys.frames(1)[0]  # C, H, O: 15 electrons
        geometry = UnlabelledStructure.from_ase(made, charge=charge, multiplicity=multiplicity)
        labeller.labels(geometry, str(number))
        assert f"*xyz {charge} {given} " in Path(f"out.files/{number}/orca.inp").read_text()


@pytest.mark.parametrize("fault", ["unconverged", "fails"])
@pytest.mark.parametrize("program", NAMES)
@pytest.mark.filterwarnings("ignore:CP2K-shell not ready")
def test_an_scf_that_has_not_converged_is_a_failed_frame(program, fault):
    labeller = Labeller(choice(program, f"{fault}=1"), Path("out.files"))
    with pytest.raises(Exception, match=f"the SCF of {program} has not converged") as caught:
        labeller.labels(structure(program), "0-1")
    told = one_line(caught.value)
    assert told.startswith("UnconvergedSCF: ")
    assert told.endswith(f" (files in {Path('out.files/0-1').resolve()})")
    if fault == "unconverged":
        assert labeller.labels(structure(program, 2), "0-2").energy > 0


@pytest.mark.parametrize("program", ["orca", "espresso"])
def test_files_of_an_earlier_attempt_are_never_read(program):
    """A program that ends without writing anything leaves nothing that could be read."""
    Labeller(choice(program), Path("out.files")).labels(structure(program), "0-1")
    silent = Choice(choice(program).name, {"command": "true"})
    with pytest.raises(Exception, match=r".") as caught:
        Labeller(silent, Path("out.files")).labels(structure(program), "0-1")
    assert f"files in {Path('out.files/0-1.1').resolve()}" in one_line(caught.value)


def test_files_of_labelled_frames_are_removed_if_only_those_of_failures_are_kept():
    labeller = Labeller(choice("orca", "unconverged=1"), Path("out.files"), keep_labelled=False)
    labeller.labels(structure("orca", 2), "0-2")
    with pytest.raises(Exception, match="has not converged"):
        labeller.labels(structure("orca", 1), "0-1")
    assert os.listdir("out.files") == ["0-1"]


def test_vasp_without_stress_has_labels_without_stress():
    path = Path(programs.__file__)
    changed = path.read_text().replace("{rows('stress', stress)}", "")
    Path("no_stress.py").write_text(changed)
    command = choice("vasp").options["command"].replace(str(path), str(Path("no_stress.py").resolve()))
    labeller = Labeller(Choice("vasp_calculator:calculator", {"command": command}), Path("out.files"))
    assert labeller.labels(structure("vasp"), "0-1").stress is None


def test_pw_without_stress_is_run_once():
    path = Path("espresso_calculator.py")
    path.write_text(path.read_text().replace(', "tstress": True', ""))
    assert Labeller(choice("espresso"), Path("out.files")).labels(structure("espresso"), "0-1").stress is None
    assert runs() == ["espresso 1"]


@pytest.mark.nightly
@pytest.mark.parametrize("program", NAMES)
def test_a_whole_run_with_two_workers_and_failures(program, capsys):
    from torchmdx.commands import cli

    frames = [structure(program, number).atoms() for number in range(6)]
    ase.io.write("a.xyz", frames, format="extxyz")
    command = choice(program, "unconverged=1,fails=4").options["command"]
    line = ["label", "a.xyz", "-o", "out.xyz", "--calculator", f"{program}_calculator:calculator", "--workers", "2"]
    assert cli.main([*line, "--calculator-option", f"command={command}"]) == 1
    assert Counter(runs()) == Counter(f"{program} {number}" for number in range(6))
    assert sorted(os.listdir("out.xyz.files")) == [f"0-{number}" for number in range(6)]
    found = ase.io.read("out.xyz", ":")
    assert [atoms.info["origin"] for atoms in found] == [f"a.xyz:{number}" for number in (0, 2, 3, 5)]
    for atoms in found:
        np.testing.assert_allclose(atoms.get_forces(), -toys.STIFFNESS * atoms.positions, atol=1e-6)
    with open("out.xyz.failed.csv", newline="") as file:
        rows = list(csv.reader(file))[1:]
    assert [origin for origin, _ in rows] == ["a.xyz:1", "a.xyz:4"]
    for number, (_, reason) in zip((1, 4), rows, strict=True):
        assert reason.startswith(f"UnconvergedSCF: the SCF of {program} has not converged")
        assert reason.endswith(f"out.xyz.files/0-{number})")
