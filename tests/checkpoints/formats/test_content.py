"""Files that are not checkpoints are described."""

import gzip

import pytest

import torchmdx
from torchmdx.checkpoints.formats.content import kind_of


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it is an empty file"),
        (b"9\nethanol\nC 0 0 0", "it is a text file that begins with '9'"),
        (b"<!DOCTYPE html><title>Sign in", r"it is a web page \(HTML\); download the file itself"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a", "it is a pointer of Git LFS; `git lfs pull`"),
        (gzip.compress(b"weights", mtime=0), "it is a gzip archive; unpack it first"),
        (b"\x89HDF\r\n\x1a\n123", "it is an HDF5 file"),
    ],
)
@pytest.mark.parametrize("ending", ["safetensors", "ckpt"])
def test_junk_is_described(tmp_path, content, words, ending):
    path = tmp_path / f"model.{ending}"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"'{path}' is not a readable checkpoint: {words}"):
        torchmdx.load(path)


def test_checkpoints_are_not_junk(data):
    assert all(kind_of(path.read_bytes()) is None for path in (data / "tensornet.ckpt", data / "tensornet.safetensors"))
