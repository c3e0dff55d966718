import re
import signal
from importlib.util import find_spec
from pathlib import Path

import ase.build
import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.constraints import FixAtoms
from test_fixed_symmetry import number_of

import torchmdx
from torchmdx import Calculator
from torchmdx.checkpoints.locate import origin_at
from torchmdx.commands import cli
from torchmdx.models.priors.zbl import ZBLConfig
from torchmdx.structures.units import GPA


@pytest.fixture
def model(make_potential, tmp_path) -> str:
    path = tmp_path / "model.safetensors"
    torchmdx.save(make_potential(), path)
    return str(path)


@pytest.fixture
def repulsive(make_potential, tmp_path) -> str:
    """A potential that only repels, so that the volume of a crystal falls steadily with its pressure."""
    potential = make_potential(priors=[ZBLConfig])
    potential.scale.fill_(0)
    torchmdx.save(potential, tmp_path / "repulsive.safetensors")
    return str(tmp_path / "repulsive.safetensors")


@pytest.fixture
def relax(model, tmp_path, monkeypatch):
    """Runs the command on atoms, in an empty folder, and returns its status; the output is out.xyz."""
    monkeypatch.chdir(tmp_path)

    def run(atoms: Atoms, *options: str, potential: str = model) -> int:
        ase.io.write("in.traj", atoms)
        command = ["relax", "in.traj", "-o", "out.xyz", "--model", potential, "--device", "cpu", "--no-page"]
        if "--page" in options:  # half a second
            command, options = command[:-1], tuple(option for option in options if option != "--page")
        return cli.main([*command, "--dtype", "float64", *options])

    return run


def with_calculator(atoms: Atoms, model: str) -> Atoms:
    atoms.calc = Calculator(model, dtype="float64", device="cpu")
    return atoms


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("name", "shown"), [(None, "LBFGS"), ("fire", "FIRE"), ("bfgs", "BFGS"), ("mdmin", "MDMin")], ids=str
)
def test_every_optimizer_finds_a_minimum(capsys, relax, model, ethanol, name, shown):
    chosen = [] if name is None else ["--optimizer", name]
    assert relax(ethanol, "--fmax", "0.1", *chosen) == 0
    assert re.search(rf"^{shown}:", capsys.readouterr().out, re.MULTILINE)
    after = with_calculator(ase.io.read("out.xyz"), model)
    assert np.linalg.norm(after.get_forces(), axis=1).max() < 0.1001
    assert after.get_potential_energy() < with_calculator(ethanol, model).get_potential_energy() - 0.01


def test_the_last_line_tells_what_was_reached(capsys, relax, repulsive):
    carbon = ase.build.bulk("C", "fcc", a=3.0)
    assert relax(carbon, "--cell", "--pressure", "50", "--fmax", "0.001", potential=repulsive) == 0
    out = capsys.readouterr().out
    found = re.fullmatch(
        r"energy (\S+) -> (\S+) eV, enthalpy (\S+) -> (\S+) eV, volume (\S+) -> (\S+) Å³ \((\S+) %\), "
        r"fmax (\S+) eV/Å after (\d+) steps; wrote out.xyz",
        last_line(out),
    )
    values = [float(x) for x in found.groups()]
    before, after = (with_calculator(atoms, repulsive) for atoms in (carbon, ase.io.read("out.xyz")))
    energies = [atoms.get_potential_energy() for atoms in (before, after)]
    volumes = [atoms.get_volume() for atoms in (before, after)]
    np.testing.assert_allclose(values[:2], energies, atol=2e-6)
    np.testing.assert_allclose(values[2:4], np.add(energies, np.multiply(50 * GPA, volumes)), atol=1e-5)
    np.testing.assert_allclose(values[4:6], volumes, atol=1e-3)
    assert values[6] == pytest.approx(100 * (volumes[1] / volumes[0] - 1), abs=0.006)
    assert values[7] < 0.001
    assert values[8] == len(re.findall("^LBFGS:", out, re.MULTILINE)) - 1
    assert "cell {:.4f} {:.4f} {:.4f} Å".format(*before.cell.lengths()) in out
    assert "-> {:.4f} {:.4f} {:.4f} Å".format(*after.cell.lengths()) in out


def test_a_pressure_is_that_of_the_relaxed_cell(capsys, relax, repulsive):
    carbon, volumes = ase.build.bulk("C", "fcc", a=3.0), []
    for pressure in (100, 50):
        options = ["--cell", "--fmax", "0.001", "--pressure", str(pressure), "--overwrite"]
        assert relax(carbon, *options, potential=repulsive) == 0
        reached = re.search(r"^pressure \S+ -> (\S+) GPa$", capsys.readouterr().out, re.MULTILINE)
        assert float(reached[1]) == pytest.approx(pressure, abs=0.1)
        squeezed = with_calculator(ase.io.read("out.xyz"), repulsive)
        np.testing.assert_allclose(squeezed.get_stress(), [-pressure * GPA] * 3 + [0] * 3, atol=0.1 * GPA)
        volumes.append(squeezed.get_volume())
    assert volumes[1] > 1.05 * volumes[0]


def test_a_fixed_symmetry_survives_a_relaxation(capsys, relax):
    pytest.importorskip("spglib")
    atoms = ase.build.bulk("CO", "zincblende", a=3.9)
    atoms.rattle(0.002, seed=1)
    options = ["--page", "--cell", "--fmax", "0.05", "--steps", "4", "--trajectory", "steps.traj"]
    relax(atoms, *options, "--fix-symmetry", "--symmetry-precision", "0.05")
    if find_spec("plotly"):
        page = Path("out.html").read_text()
        assert "pressure / GPa" in page
        assert "force on the cell / eV per atom" in page
    assert "space group F-43m (216)" in capsys.readouterr().out
    fixed, frames = ase.io.read("out.xyz"), ase.io.read("steps.traj", ":")
    assert number_of(fixed) == 216
    assert abs(fixed.get_volume() - atoms.get_volume()) > 0.01
    assert [frame.constraints for frame in frames] == [[]] * len(frames)
    relax(atoms, *options, "--overwrite")
    assert number_of(ase.io.read("out.xyz")) == 1


def test_a_trajectory_holds_every_step_with_its_results(relax, model, ethanol):
    ethanol.set_constraint(FixAtoms([2]))
    assert relax(ethanol, "--fmax", "0.2", "--trajectory", "steps.traj") == 0
    frames = ase.io.read("steps.traj", ":")
    np.testing.assert_allclose(frames[0].positions, ethanol.positions)
    np.testing.assert_allclose(frames[-1].positions, ase.io.read("out.xyz").positions, atol=1e-7)
    np.testing.assert_array_equal(frames[-1].positions[2], ethanol.positions[2])
    assert frames[-1].constraints[0].index.tolist() == [2]
    last = with_calculator(frames[-1].copy(), model)
    assert frames[-1].get_potential_energy() == pytest.approx(last.get_potential_energy(), abs=1e-9)
    np.testing.assert_allclose(frames[-1].get_forces(), last.get_forces(), atol=1e-9)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_relaxation_with_the_structure_that_was_reached(capsys, relax, ethanol, monkeypatch, number):
    evaluate, count = Calculator.calculate, []

    def calculate(self, *arguments, **options):
        evaluate(self, *arguments, **options)
        count.append(1)
        if len(count) == 4:
            signal.raise_signal(number)

    monkeypatch.setattr(Calculator, "calculate", calculate)
    before = signal.getsignal(number)
    assert relax(ethanol, "--fmax", "1e-9", "--trajectory", "steps.traj") == 128 + number
    out, err = capsys.readouterr()
    assert "after 3 steps; wrote out.xyz" in last_line(out)
    assert f"stopped by {number.name}, not converged to 1e-09 eV/Å" in err
    frames = ase.io.read("steps.traj", ":")
    assert len(frames) == 4
    np.testing.assert_allclose(ase.io.read("out.xyz").positions, frames[-1].positions, atol=1e-7)
    assert signal.getsignal(number) is before


def test_a_signal_while_it_reads_writes_the_structure_as_it_is(capsys, relax, ethanol, monkeypatch):
    from torchmdx.commands import relax as module

    def slow(options, read=module.structure_of):
        signal.raise_signal(signal.SIGTERM)
        return read(options)

    monkeypatch.setattr(module, "structure_of", slow)
    assert relax(ethanol, "--fmax", "1e-9") == 128 + signal.SIGTERM
    out, err = capsys.readouterr()
    assert "after 0 steps; wrote out.xyz" in last_line(out)
    assert "stopped by SIGTERM, not converged to 1e-09 eV/Å" in err
    np.testing.assert_allclose(ase.io.read("out.xyz").positions, ethanol.positions, atol=1e-7)


def test_a_relaxation_that_ends_early_names_another_optimizer(capsys, relax, ethanol):
    assert relax(ethanol, "--steps", "1") == 1
    assert "raise --steps or --fmax, or try --optimizer fire" in capsys.readouterr().err
    assert relax(ethanol, "--steps", "1", "--optimizer", "fire", "--overwrite") == 1
    assert "or try --optimizer lbfgs" in capsys.readouterr().err


@pytest.mark.parametrize("existing", ["out.xyz", "steps.traj"])
def test_existing_files_are_replaced_only_on_request(capsys, relax, ethanol, tmp_path, existing):
    (tmp_path / existing).write_text("mine")
    options = ["--fmax", "1", "--trajectory", "steps.traj"]
    assert relax(ethanol, *options) == 2
    assert f"output files must not exist, got {existing}; --overwrite replaces them" in capsys.readouterr().err
    assert (tmp_path / existing).read_text() == "mine"
    assert relax(ethanol, *options, "--overwrite") == 0
    assert len(ase.io.read("out.xyz")) == len(ase.io.read("steps.traj")) == 9


def test_a_failed_write_leaves_the_existing_file(capsys, relax, ethanol, tmp_path, monkeypatch):
    (tmp_path / "out.xyz").write_text("mine")

    def half(path, *arguments, **options):
        path.write_text("half")
        raise OSError(28, "No space left on device")

    write = ase.io.write
    monkeypatch.setattr(ase.io, "write", lambda path, *a, **o: (write if path == "in.traj" else half)(path, *a, **o))
    assert relax(ethanol, "--fmax", "1", "--overwrite") == 2
    assert "No space left on device" in capsys.readouterr().err
    assert (tmp_path / "out.xyz").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.glob("*out*")) == ["out.xyz"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--fmax", "nan"], "--fmax must be > 0 eV/Å, got nan"),
        (["--pressure", "3"], "--pressure needs --cell"),
        (["--cell", "--pressure", "inf"], "--pressure must be a finite number of GPa, got inf"),
        (["--symmetry-precision", "0.1"], "--symmetry-precision needs --fix-symmetry"),
        (["--fix-symmetry", "--symmetry-precision", "0"], "--symmetry-precision must be > 0 Å, got 0.0"),
        (["--trajectory", "no/steps.traj"], "--trajectory must be in an existing directory, got 'no/steps.traj'"),
        (["--trajectory", "./out.xyz"], "--output and --trajectory must be different files"),
        (["--trajectory", "in.traj", "--overwrite"], "--trajectory must not be the structure file, got 'in.traj'"),
        (["--cell", "--pressure", "1"], "periodic in all directions, got pbc [True, True, False]"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_the_work(capsys, relax, slab, options, words):
    assert relax(slab, *options) == 2
    out, err = capsys.readouterr()
    assert words in err
    assert "Step" not in out


def test_a_page_shows_the_steps(capsys, relax, ethanol, tmp_path):
    pytest.importorskip("plotly")
    assert relax(ethanol, "--page", "--fmax", "0.1", "--trajectory", "steps.traj") == 0
    assert "wrote out.html, an interactive page of the steps" in capsys.readouterr().out
    text = (tmp_path / "out.html").read_text()
    steps = ase.io.read("steps.traj", ":")
    assert f"C2H6O, 9 atoms, {len(steps)} frames" in text
    assert f"relaxation with {origin_at('model.safetensors')}" in text
    assert f'"step {len(steps) - 1}"' in text
    assert "largest force / eV/Å" in text
    (tmp_path / "out.xyz").unlink()
    (tmp_path / "steps.traj").unlink()
    assert relax(ethanol, "--page") == 2
    assert "out.html" in capsys.readouterr().err
    assert relax(ethanol, "--fmax", "0.1") == 0  # --no-page leaves it
    assert (tmp_path / "out.html").read_text() == text
