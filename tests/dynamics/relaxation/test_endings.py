import ase.build
import numpy as np
import pytest

from torchmdx.dynamics.relaxation import fire
from torchmdx.dynamics.relaxation.endings import failed, relaxed
from torchmdx.dynamics.relaxation.fire import FireSettings
from torchmdx.dynamics.relaxation.tasks import task_of
from torchmdx.models.origin import Origin

ORIGIN = Origin("model.safetensors", "0" * 64)


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (fire.CONVERGED, None),
        (fire.OUT_OF_STEPS, "not converged to 0.02 eV/Å in 30 steps: largest force 1.23 eV/Å"),
        (fire.NOT_FINITE, "energy or forces are not finite after 30 steps; the closest atoms, 0 and 1, are 0.9"),
        (fire.TOO_FAR, "an atom moved farther than 20 Å from its start, after 30 steps"),
        (fire.CELL_LOST, "the volume of the cell changed more than 5-fold, from 1331 to 1000 Å³ and beyond"),
    ],
)
def test_reasons(potential, status, text):
    atoms = ase.build.molecule("H2O", cell=[11, 11, 11], pbc=True)
    task = task_of(4, atoms, potential, FireSettings(cell=True), None)
    task.values |= {"status": status, "steps": 30, "fmax": 1.234, "energy": -5.0, "cell": 10 * np.eye(3)}
    forces, stress = np.arange(30.0).reshape(10, 3), np.arange(27.0).reshape(3, 3, 3)
    found = relaxed(
        task, FireSettings(fmax=0.02, steps=30, cell=True), {"forces": forces, "stress": stress}, 1, 2, ORIGIN
    )
    assert found.index == 4
    assert found.converged == (text is None)
    assert (found.reason or "").startswith(text or "")
    assert found.atoms.get_volume() == pytest.approx(1000)
    if status == fire.NOT_FINITE:
        assert found.atoms.calc is None
    else:
        assert found.atoms.get_potential_energy() == -5.0
        assert np.array_equal(found.atoms.get_forces(), forces[2:5])
        assert found.atoms.get_stress()[0] == 9.0


def test_the_reason_of_coinciding_atoms_is_that_of_an_evaluation(potential):
    atoms = ase.build.molecule("H2O")
    atoms.positions[2] = atoms.positions[0] + 5e-5
    task = task_of(0, atoms, potential, FireSettings(), None)
    task.values |= {"status": fire.NOT_FINITE}
    assert (
        ": atoms must not coincide, got atoms 0 and 2 at the same position"
        in relaxed(task, FireSettings(), {}, 0, 0, ORIGIN).reason
    )


def test_a_failure_is_a_copy():
    atoms = ase.build.molecule("H2O")
    found = failed(2, atoms, "because")
    assert (found.index, found.reason, found.converged) == (2, "because", False)
    assert found.atoms is not atoms
