import itertools

import pytest
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator

from torchmdx.report.view.recording import ThinnedSteps


def recorded(number, **limits):
    recording = ThinnedSteps(**limits)
    for step in range(number):
        atoms = Atoms("H2", [[0, 0, 0], [0, 0, 0.7 + step]])
        atoms.calc = SinglePointCalculator(atoms, energy=-float(step))
        recording.add(atoms)
    return recording


def test_few_steps_are_all_kept():
    frames = recorded(5).frames("relaxation")
    assert frames.indices.tolist() == [0, 1, 2, 3, 4]
    assert (frames.axis, frames.num_frames, frames.title) == ("step", 5, "relaxation")
    assert frames.captions[3] == "step 3"
    assert frames.panels[0].lines[0].y.tolist() == [0.0, -1.0, -2.0, -3.0, -4.0]


@pytest.mark.parametrize("limits", [dict(most_frames=10), dict(most_positions=20)])
def test_many_steps_are_thinned_evenly_with_both_ends(limits):
    recording = recorded(1000, **limits)
    frames = recording.frames("t")
    indices = frames.indices.tolist()
    assert (indices[0], indices[-1]) == (0, 999)
    steps = {later - earlier for earlier, later in itertools.pairwise(indices[:-1])}
    assert len(steps) == 1
    assert 5 <= len(indices) <= 11
    for index, positions in zip(indices, frames.positions, strict=True):
        assert positions[1, 2] == pytest.approx(0.7 + index)
    assert frames.num_frames == 1000


def test_large_structures_keep_both_ends():
    assert recorded(7, most_positions=1).frames("t").indices.tolist()[-1] == 6
    assert recorded(7, most_positions=1).frames("t").indices.tolist()[0] == 0
    assert len(recorded(100, most_positions=1).frames("t").indices) <= 3


def test_nothing_recorded():
    with pytest.raises(ValueError, match="a recording needs at least one structure, got none"):
        ThinnedSteps().frames("t")


def test_a_moving_cell_shows_its_pressure_and_force():
    recording = ThinnedSteps(pressure=2.0)
    for step in range(3):
        atoms = Atoms("Cu", cell=[3 + 0.1 * step] * 3, pbc=True)
        atoms.calc = SinglePointCalculator(atoms, energy=-float(step), stress=[-0.1, -0.1, -0.1, 0, 0, 0])
        recording.add(atoms, cell_force=0.5 - 0.1 * step)
    panels = {panel.title: panel for panel in recording.frames("t").panels}
    assert panels["pressure / GPa"].level == 2.0
    assert panels["pressure / GPa"].lines[0].y == pytest.approx([16.0218] * 3, abs=1e-3)
    assert panels["force on the cell / eV per atom"].lines[0].y == pytest.approx([0.5, 0.4, 0.3])
    assert "force on the cell / eV per atom" not in [panel.title for panel in recorded(3).frames("t").panels]
