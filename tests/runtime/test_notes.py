"""Notes in the cache: kept by names that depend on versions; none of them is needed."""

import pytest

from torchmdx.runtime import notes


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHMDX_CACHE", str(tmp_path))
    return tmp_path


def test_a_note_is_kept():
    name = notes.name_of("TensorNet", 128)
    assert notes.noted("kernels", name) is None
    notes.note("kernels", name, [3, 0.1])
    assert notes.noted("kernels", name) == [3, 0.1]
    assert notes.noted("others", name) is None
    assert notes.noted("kernels", notes.name_of("TensorNet", 64)) is None


def test_another_version_is_another_name(monkeypatch):
    name = notes.name_of("TensorNet")
    assert notes.name_of("TensorNet") == name
    monkeypatch.setattr(notes, "_version", lambda package: "0")
    assert notes.name_of("TensorNet") != name


@pytest.mark.parametrize("text", ["", "[]", "[3, null]", "damaged"])
def test_damaged_notes_are_none(cache, text):
    (cache / "kernels.json").write_text(text)
    assert notes.noted("kernels", "name") is None
    notes.note("kernels", "name", True)
    assert notes.noted("kernels", "name") is True


def test_the_oldest_notes_go(monkeypatch):
    monkeypatch.setattr(notes, "MOST", 2)
    for name in "abca":
        notes.note("kernels", name, 1)
    assert [notes.noted("kernels", name) for name in "abc"] == [1, None, 1]


def test_a_cache_that_cannot_be_written_is_no_error(monkeypatch, cache):
    (cache / "file").write_text("")
    monkeypatch.setenv("TORCHMDX_CACHE", str(cache / "file" / "folder"))
    notes.note("kernels", "name", 1)
    assert notes.noted("kernels", "name") is None
