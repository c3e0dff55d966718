"""Files and folders that are read once."""

import hashlib
import json

import pytest

from torchmdx.checkpoints.formats.source import Source


def safetensors(header) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text


def test_content_stays_as_it_was_first_read(tmp_path):
    (tmp_path / "file").write_bytes(b"first")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "part").write_bytes(b"first")
    file, folder = Source(str(tmp_path / "file")), Source(str(tmp_path / "folder"))
    assert (file.data, folder.part("part"), folder.data) == (b"first", b"first", b"")
    (tmp_path / "file").write_bytes(b"second")
    (tmp_path / "folder" / "part").write_bytes(b"second")
    assert (file.data, folder.part("part")) == (b"first", b"first")
    assert file.sha256 == hashlib.sha256(b"first").hexdigest()
    for one in (file, folder):
        again = one.with_total_energy()
        assert again.total_energy
        assert not one.total_energy
        assert (again.origin, again.data, again.is_folder) == (one.origin, one.data, one.is_folder)
    assert folder.with_total_energy().part("part") == b"first"
    assert (folder.has_part("part"), folder.has_part("other"), file.has_part("part")) == (True, False, False)


def test_a_file_inside_another_needs_no_disk(tmp_path):
    source = Source(str(tmp_path / "some.zip" / "member.ckpt"), b"content")
    assert (source.data, source.is_folder, source.path.suffix) == (b"content", False, ".ckpt")


@pytest.mark.parametrize(
    ("data", "metadata"),
    [
        (safetensors({"__metadata__": {"format": "some"}, "w": {}}), {"format": "some"}),
        (safetensors({"w": {}}), {}),
        (safetensors({"__metadata__": 3}), {}),
        (safetensors([1])[:8] + b"{", {}),
        (safetensors(b"{" * 100_000), {}),
        (b"\xff" * 8 + b"{}", {}),
        (b"PK\x03\x04", {}),
        (b"", {}),
    ],
)
def test_metadata_of_what_is_no_sound_header_are_empty(data, metadata):
    assert Source("file", data).metadata == metadata
