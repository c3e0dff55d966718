import numpy as np
import pytest
from frame_sets import frames_of, molecules

from torchmdx.report.kept_frames import KeptFrames
from torchmdx.report.predictions import Predictions


def part_of(structures, start, energy_errors, force_errors):
    """A batch whose labels are zero; errors of each frame: of its energy, and of its last atom along y."""
    frames = frames_of(structures)
    frames.forces[:] = 0.0
    forces = np.zeros_like(frames.forces, dtype=np.float64)
    last = np.cumsum(frames.counts) - 1
    forces[last, 1] = force_errors
    indices = np.arange(start, start + len(structures))
    return Predictions(indices, frames, np.array(energy_errors, dtype=np.float64), forces, None)


@pytest.fixture
def parts():
    """Two batches of 60 frames; frame 77 has the largest energy error per atom, frame 3 the largest force error."""
    structures = molecules(120)
    energies, forces = np.full(120, 0.1), np.full(120, 0.2)
    energies[77], forces[3] = 50.0, -9.0
    cut = slice(60), slice(60, 120)
    return [part_of(structures[one], one.start or 0, energies[one], forces[one]) for one in cut], structures


def test_all_frames_are_kept_if_they_are_few(parts):
    batches, structures = parts
    kept = KeptFrames(np.zeros(10))
    for part in batches:
        kept.add(part)
    found = kept.frames()
    assert [frame.index for frame in found] == list(range(120))
    assert kept.num_seen == 120
    for frame, atoms in zip(found, structures, strict=True):
        assert frame.numbers.tolist() == atoms.numbers.tolist()
        assert frame.positions == pytest.approx(atoms.positions)
    assert found[77].energy_error == pytest.approx(50.0 / len(structures[77]))
    assert found[3].force_error == pytest.approx(9.0)
    assert found[3].forces[1][-1].tolist() == [0.0, -9.0, 0.0]


@pytest.mark.parametrize("limits", [dict(most=20, worst=2), dict(most_atoms=100, worst=2)])
def test_a_sample_and_the_worst_are_kept(parts, limits):
    kept = KeptFrames(np.zeros(10), **limits)
    for part in parts[0]:
        kept.add(part)
    found = kept.frames()
    assert {3, 77} <= {frame.index for frame in found}
    assert sum(len(frame.numbers) for frame in found) <= 100 + 6 * 9 or len(found) <= 24
    assert 10 <= len(found) <= 24
    assert max(frame.index for frame in found) > 60  # of the second batch as well
    assert min(frame.index for frame in found) < 60


def test_frames_without_labels():
    part = part_of(molecules(4), 0, np.full(4, np.nan), np.full(4, np.nan))
    kept = KeptFrames(np.zeros(10))
    kept.add(part)
    assert len(kept.frames()) == 4
    assert np.isnan(kept.frames()[0].energy_error)


def test_memory_is_that_of_the_kept_frames(parts):
    """Positions are copies: a frame that is kept does not hold the whole batch."""
    kept = KeptFrames(np.zeros(10), most=1, worst=1)
    for part in parts[0]:
        kept.add(part)
    for frame in kept.frames():
        base = frame.positions.base
        assert base is None or base.nbytes == frame.positions.nbytes
