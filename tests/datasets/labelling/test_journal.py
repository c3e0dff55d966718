import errno
import os

import numpy as np
import pytest

from torchmdx.datasets.labelling import journal as module
from torchmdx.datasets.labelling.journal import Journal

SETTINGS = {"calculator": "emt", "options": [1, 2.5, None]}


def write(path, numbers, **options) -> list[int]:
    with Journal(path, SETTINGS, **options) as journal:
        return [journal.append({"number": k}, {"x": np.full((k, 3), k / 7)}) for k in numbers]


def numbers(path) -> list[int]:
    with Journal(path, SETTINGS) as journal:
        return [header["number"] for _, header in journal.records()]


def test_records_come_back(tmp_path):
    path = tmp_path / "j"
    kept = {
        "floats": np.linspace(0, 1, 6, dtype=np.float32).reshape(2, 3),
        "whole": np.array([1, -2]),
        "flags": np.array([True, False]),
        "nothing": np.zeros((0, 3)),
    }
    with Journal(path, SETTINGS) as journal:
        offset = journal.append({"word": "Å"}, kept)
    with Journal(path, {"options": (1, 2.5, None), "calculator": "emt"}) as journal:
        header, arrays = journal.read(offset)
        assert header == {"word": "Å"}
        assert [entry for entry, _ in journal.records()] == [offset]
    assert arrays.keys() == kept.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, kept[name])
    assert arrays["floats"].dtype == np.float64


def test_a_torn_record_is_cut_off_wherever_it_was_torn(tmp_path):
    path = tmp_path / "j"
    offsets = write(path, [1, 2, 3])
    whole = path.read_bytes()
    for size in range(offsets[2] + 1, len(whole)):
        path.write_bytes(whole[:size])
        with Journal(path, SETTINGS) as journal:
            assert journal.discarded == size - offsets[2]
            assert [header["number"] for _, header in journal.records()] == [1, 2]
            journal.append({"number": 9}, {})
        assert numbers(path) == [1, 2, 9]


def test_a_journal_torn_before_its_first_record_begins_anew(tmp_path):
    path = tmp_path / "j"
    offsets = write(path, [1])
    whole = path.read_bytes()
    for size in range(offsets[0]):
        path.write_bytes(whole[:size])
        assert numbers(path) == []
        assert path.read_bytes() == whole[: offsets[0]]


def test_a_damaged_record_costs_only_itself(tmp_path):
    path = tmp_path / "j"
    offsets = write(path, [1, 2, 3])
    whole = path.read_bytes()
    for place in (offsets[1], offsets[1] + 5, offsets[1] + 9, offsets[1] + 30, offsets[2] - 1):
        damaged = bytearray(whole)
        damaged[place] ^= 0x10
        path.write_bytes(damaged)
        with Journal(path, SETTINGS) as journal:
            assert [header["number"] for _, header in journal.records()] == [1, 3]
            assert journal.discarded == offsets[2] - offsets[1]
    damaged = bytearray(whole)
    damaged[offsets[0] - 1] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match="is damaged: it must begin with the settings of its run"):
        Journal(path, SETTINGS)
    assert path.read_bytes() == damaged


def test_other_settings_are_refused_and_named(tmp_path):
    path = tmp_path / "j"
    write(path, [1])
    with pytest.raises(ValueError, match="got calculator lj, was emt; seed 3, was None; --overwrite starts again"):
        Journal(path, {**SETTINGS, "calculator": "lj", "seed": 3})
    with pytest.raises(ValueError, match="got calculator None, was emt; options None"):
        Journal(path, {})
    assert numbers(path) == [1]


def test_settings_without_records_bind_nobody(tmp_path):
    path = tmp_path / "j"
    write(path, [])
    with Journal(path, {"calculator": "lj"}) as journal:
        journal.append({"number": 1}, {})
    with pytest.raises(ValueError, match="calculator emt, was lj"):
        Journal(path, SETTINGS)


def test_anew_forgets(tmp_path):
    path = tmp_path / "j"
    write(path, [1, 2])
    write(path, [3], anew=True)
    assert numbers(path) == [3]


def test_another_file_is_refused_and_kept(tmp_path):
    path = tmp_path / "j"
    path.write_text("somebody's notes")
    for anew in (False, True):
        with pytest.raises(ValueError, match="must be a journal of torchmdx label, got another file"):
            Journal(path, SETTINGS, anew=anew)
    assert path.read_text() == "somebody's notes"


def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "j"
    real = os.pwrite

    def pwrite(file, data, offset):
        if len(data) < 200:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, data[:-100], offset)

    with Journal(path, SETTINGS) as journal:
        journal.append({"number": 1}, {"x": np.zeros(100)})
        before = path.read_bytes()
        monkeypatch.setattr(module.os, "pwrite", pwrite)
        with pytest.raises(
            OSError, match="could not be written: No space left on device; it keeps all earlier records"
        ):
            journal.append({"number": 2}, {"x": np.zeros(100)})
        assert path.read_bytes() == before
        monkeypatch.undo()
        journal.append({"number": 3}, {})
    assert numbers(path) == [1, 3]
