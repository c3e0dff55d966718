"""The driver in runs of i-PI itself: energies, forces and virials of every bead, batches of any size, errors."""

import ase.build
import ase.io
import ipi_runs as runs
import numpy as np
import pytest

import torchmdx

pytest.importorskip("ipi.pes")
TorchmdxDriver = pytest.importorskip("torchmdx.ipi.driver").TorchmdxDriver


def direct(batch: int, *, threaded: bool = False) -> str:
    return runs.DIRECT.replace("BATCH", str(batch)).replace("THREADED", str(threaded))


def prepare(folder, atoms, **settings) -> None:
    ase.io.write(folder / "init.xyz", atoms)
    runs.write(folder, **settings)


def require_exact(folder, template, beads: int) -> None:
    """Every potential, force and virial that i-PI wrote is that of the positions that it wrote, to their digits."""
    atoms = template.copy()
    atoms.calc = torchmdx.Calculator(dtype="float64", device="cpu")
    positions = [runs.frames(folder, f"run.pos_{k}.xyz") for k in range(beads)]
    forces = [runs.frames(folder, f"run.for_{k}.xyz") for k in range(beads)]
    found = runs.rows(folder)
    assert len(found) == len(positions[0]) > 1
    for step, row in enumerate(found):
        energies, stresses = [], []
        for k in range(beads):
            edges, atoms.positions[:] = positions[k][step]
            atoms.set_cell(edges)
            energies.append(atoms.get_potential_energy())
            stresses.append(atoms.get_stress(voigt=False))
            np.testing.assert_allclose(forces[k][step][1], atoms.get_forces(), rtol=0, atol=2e-3)
        assert row[1] == pytest.approx(np.mean(energies), abs=2e-4)
        stress = np.mean(stresses, axis=0)
        written = [-stress[i, j] for i, j in ((0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2))]
        np.testing.assert_allclose(row[2:8], written, rtol=1e-3, atol=1e-3 * np.abs(stress).max())


@pytest.mark.nightly_for("3-2-True", "3-8-False", "4-4-False")
@pytest.mark.parametrize(("beads", "batch", "threaded"), [(4, 4, False), (4, 3, False), (3, 8, False), (3, 2, True)])
def test_all_beads_of_a_step(tmp_path, beads, batch, threaded):
    """Without `threaded`, i-PI alone would wait for ever where the number is not a multiple of the batch."""
    ethanol = ase.build.molecule("CH3CH2OH")
    prepare(tmp_path, ethanol, forcefield=direct(batch, threaded=threaded), steps=3, beads=beads)
    runs.finish(tmp_path, runs.start(tmp_path))
    require_exact(tmp_path, ethanol, beads)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:.*periodic:UserWarning")
def test_constant_pressure(tmp_path):
    """The cell of a crystal follows the virial, and energies and virials stay those of ASE's stress."""
    ice = ase.build.bulk("MgO", "rocksalt", a=4.2, cubic=True)
    ice.numbers[:] = [8, 6] * 4
    ice.rattle(0.02, seed=1)
    prepare(tmp_path, ice, forcefield=direct(1), steps=6, edge=4.2, npt=True)
    runs.finish(tmp_path, runs.start(tmp_path))
    require_exact(tmp_path, ice, 1)
    edges = [edges[0] for edges, _ in runs.frames(tmp_path, "run.pos_0.xyz")]
    assert max(edges) - min(edges) > 1e-3


@pytest.fixture
def template(tmp_path) -> str:
    ase.io.write(tmp_path / "init.xyz", ase.build.molecule("CH3CH2OH"))
    return str(tmp_path / "init.xyz")


def test_one_structure_and_lists(template):
    driver = TorchmdxDriver(template, dtype="float64", device="cpu", verbosity="high")
    places = ase.io.read(template).positions / 0.529177210544
    cell = np.diag([30.0, 31.0, 32.0])
    alone = driver(cell, places)
    both = driver([cell, cell], [places, places + 1.0])
    assert len(both) == 2
    assert both[0][0] == pytest.approx(alone[0], rel=1e-13)
    assert both[1][0] == pytest.approx(alone[0], rel=1e-12)
    assert alone[1].shape == (9, 3)
    assert alone[2].shape == (3, 3)
    assert alone[3] == ""


@pytest.mark.filterwarnings("ignore:.*periodic:UserWarning")
def test_columns_of_a_cell_are_lattice_vectors(tmp_path, crystal):
    crystal.info["charge"] = 1
    ase.io.write(tmp_path / "crystal.xyz", crystal)
    with pytest.warns(UserWarning, match="periodic"):
        driver = TorchmdxDriver(str(tmp_path / "crystal.xyz"), dtype="float64", device="cpu")
    crystal.calc = torchmdx.Calculator(dtype="float64", device="cpu")
    energy = crystal.get_potential_energy()
    found = driver(crystal.cell.array.T / 0.529177210544, crystal.positions / 0.529177210544)
    assert found[0] * 27.211386245981 == pytest.approx(energy, rel=1e-10)


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        (
            {"template": ""},
            ValueError,
            "template must be the file of a structure .*, got none",
        ),
        ({"template": "none.xyz"}, FileNotFoundError, "no structure file at 'none.xyz'"),
        ({"modle": "organic-1"}, TypeError, "parameters must be of .*, got 'modle'; did you mean 'model'"),
        ({"charge": "one"}, ValueError, "charge must be a number, got 'one'"),
        ({"dtype": "float16"}, ValueError, "dtype must be one of float32, .*, got 'float16'"),
        ({"device": "gpu"}, ValueError, "device must be cpu or cuda, got 'gpu'"),
    ],
)
def test_bad_parameters(template, parameters, error, message):
    with pytest.raises(error, match=message):
        TorchmdxDriver(**{"template": template, **parameters})


def test_another_number_of_atoms(template):
    driver = TorchmdxDriver(template, device="cpu")
    with pytest.raises(ValueError, match="i-PI's structure must have the 9 atoms of the template, got 8"):
        driver([np.eye(3)], [np.zeros((8, 3))])


@pytest.mark.nightly
def test_an_error_ends_the_run_with_its_message(tmp_path):
    prepare(tmp_path, ase.build.molecule("CH3CH2OH"), forcefield=direct(1).replace("init.xyz", "no.xyz"), steps=2)
    process = runs.start(tmp_path)
    assert process.wait(60) != 0
    assert "no structure file at 'no.xyz'" in (tmp_path / "log").read_text()
