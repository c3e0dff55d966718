"""Files are written atomically, whatever fails, and existing ones are named."""

import os

import pytest

from torchmdx.runtime.files import require_new, whole_file, write_whole


def full(*_):
    raise OSError(28, "No space left on device")


def test_a_file_is_written_and_replaced(tmp_path):
    path = tmp_path / "numbers"
    write_whole(path, b"one")
    write_whole(path, b"two")
    assert path.read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_failure_names_the_file_and_leaves_what_was_there(tmp_path, monkeypatch, function):
    path = tmp_path / "numbers"
    write_whole(path, b"one")
    monkeypatch.setattr(os, function, full)
    with pytest.raises(OSError, match=r"numbers' could not be written \(No space left on device\)") as caught:
        write_whole(path, b"two")
    assert caught.value.errno == 28
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_stays_that_kind_of_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="could not be written"):
        write_whole(tmp_path / "nowhere" / "numbers", b"one")


def test_an_error_while_writing_leaves_what_was_there(tmp_path):
    path = tmp_path / "numbers"
    write_whole(path, b"one")

    def half():
        with whole_file(path) as file:
            file.write(b"tw")
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        half()
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]


def test_existing_outputs_are_named_with_the_remedy(tmp_path):
    new, there, dangling = tmp_path / "new", tmp_path / "there", tmp_path / "dangling"
    there.touch()
    dangling.symlink_to(tmp_path / "nowhere")
    require_new(new)
    with pytest.raises(FileExistsError, match=f"must not exist, got {there}, {dangling}; --overwrite replaces them"):
        require_new(new, there, str(dangling))
    with pytest.raises(FileExistsError, match="; choose another name"):
        require_new(there, remedy="choose another name")
