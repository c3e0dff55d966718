"""Files that have changed are noticed."""

import os

from torchmdx.datasets.source_state import changed, source_state


def test_changed_files_and_other_readings_are_named(tmp_path):
    file, folder = tmp_path / "a.xyz", tmp_path / "folder"
    folder.mkdir()
    file.write_text("one")
    (folder / "b.npy").write_text("b")
    reading = {"energy_unit": "eV", "keys": {"energy": None}}
    before = source_state([file, folder], reading)
    assert changed(source_state([file, folder], {"energy_unit": "eV", "keys": {}, "format": None}), before) == []
    assert changed(before, None) == [str(file), str(folder)]
    file.write_text("two!")
    assert changed(source_state([file, folder], reading), before) == [str(file)]
    (folder / "c.npy").write_text("c")
    assert changed(source_state([file, folder], reading), before) == [str(file), str(folder)]
    assert changed(source_state([folder], reading), before) == [str(folder), str(file)]
    file.unlink()
    (folder / "c.npy").unlink()
    assert changed(source_state([file, folder], {"energy_unit": "kJ/mol"}), before) == [str(file), "how files are read"]


def test_a_file_of_the_same_size_that_was_written_later_has_changed(tmp_path):
    (tmp_path / "a").write_text("1")
    before = source_state([tmp_path / "a"], {})
    os.utime(tmp_path / "a", ns=(0, 12345))
    assert changed(source_state([tmp_path / "a"], {}), before) == [str(tmp_path / "a")]
