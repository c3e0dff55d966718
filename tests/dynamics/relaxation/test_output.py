import errno

import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator

from torchmdx.dynamics.relaxation.output import RelaxationOutput, failures_of, frames_of, key_of
from torchmdx.dynamics.relaxation.tasks import Relaxed

NUMBERS, KEYS = [3, 5, 8, 9], ["a", "b", "c", "d"]


def one(index: int, reason: str | None = None) -> Relaxed:
    atoms = Atoms("OH", [[0, 0, 0], [0, 0, 1.0 + index]], info={"name": f"n {index}"})
    atoms.calc = SinglePointCalculator(atoms, energy=-1.5 * index, forces=np.full((2, 3), 0.1))
    return Relaxed(index, atoms, reason, 7, 0.001)


@pytest.fixture
def output(tmp_path) -> RelaxationOutput:
    found = RelaxationOutput(tmp_path / "out.xyz", NUMBERS, KEYS)
    found.start()
    for place, reason in ((2, None), (0, None), (3, 'it "failed", here'), (1, None)):
        found.add(one(place, reason), place)
    return found


def again(output: RelaxationOutput, keys=KEYS) -> RelaxationOutput:
    found = RelaxationOutput(output.path, NUMBERS, keys)
    found.resume()
    return found


def test_frames_and_failures_are_kept_apart_and_sorted(output):
    assert [frame.info["relax_index"] for frame in ase.io.read(output.path, ":")] == [8, 3, 5]
    output.sort()
    frames = ase.io.read(output.path, ":")
    assert [frame.info["relax_index"] for frame in frames] == [3, 5, 8]
    assert [frame.get_potential_energy() for frame in frames] == [0, -1.5, -3.0]
    assert frames[1].info["name"] == "n 1"
    assert frames[1].info["relax_steps"] == 7
    (failure,) = ase.io.read(failures_of(output.path), ":")
    assert failure.info["relax_failure"] == 'it "failed", here'
    assert failure.info["relax_index"] == 9


def test_what_is_done_is_read_back(output):
    found = again(output)
    assert (found.converged, found.failed) == ({0, 1, 2}, {3})
    assert found.done == {0, 1, 2, 3}


def test_info_of_the_input_is_kept_without_line_breaks_and_old_results(output):
    found = one(1, "two\nlines")
    found.atoms.info |= {"comment": "first\n second", "relax_failure": "of before", "energy_above_hull": 0.25}
    output.start()
    output.add(found, 1)
    output.add(Relaxed(0, found.atoms, None, 3, 0.01), 0)
    (failure,), (good,) = (ase.io.read(path, ":") for path in (output.failures, output.path))
    assert failure.info["relax_failure"] == "two lines"
    assert "relax_failure" not in good.info
    assert good.info["comment"] == "first second"
    assert good.info["energy_above_hull"] == 0.25
    assert again(output).done == {0, 1}


@pytest.mark.parametrize("cut", [1, 20, 90, 150])
def test_a_frame_that_was_cut_short_is_removed(output, cut):
    content = output.path.read_bytes()
    output.path.write_bytes(content[:-cut])
    found = again(output)
    assert found.converged == {0, 2}
    assert output.path.read_bytes() == b"".join(list(frames_of(content))[:2])
    found.add(one(1), 1)
    assert output.path.read_bytes() == content


def test_frames_of_other_structures_are_refused(output):
    with pytest.raises(ValueError, match=r"out.xyz' must hold structures of this input.*got another one .*5\)"):
        again(output, ["a", "x", "c", "d"])
    ase.io.write(output.path, one(0).atoms, format="extxyz")
    with pytest.raises(ValueError, match=r"relax_index missing"):
        again(output)


def test_a_full_disk_is_an_error_and_leaves_whole_frames(output, monkeypatch):
    before = output.path.read_bytes()

    class Full:
        def __init__(self, file) -> None:
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *error) -> None:
            self.file.close()

        def tell(self) -> int:
            return self.file.tell()

        def write(self, data: bytes) -> int:
            return self.file.write(data[:10])

    original = type(output.path).open
    monkeypatch.setattr(type(output.path), "open", lambda path, *a, **k: Full(original(path, *a, **k)))
    with pytest.raises(OSError, match=r"out.xyz' could not be written") as caught:
        output.add(one(1), 1)
    monkeypatch.undo()
    assert caught.value.errno in (None, errno.ENOSPC)
    assert output.path.read_bytes() == before


def test_keys_tell_structures_settings_and_constraints_apart():
    from ase.constraints import FixAtoms

    atoms = one(0).atoms
    moved, charged, fixed, boxed = (atoms.copy() for _ in range(4))
    moved.positions[0, 0] += 1e-9
    charged.info["charge"] = 1
    fixed.set_constraint(FixAtoms([0]))
    boxed.set_cell([9, 9, 9])
    keys = {key_of(other, "x") for other in (atoms, moved, charged, fixed, boxed)} | {key_of(atoms, "y")}
    assert len(keys) == 6
    assert key_of(atoms.copy(), "x") == key_of(atoms, "x")
