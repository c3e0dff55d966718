"""Files that are not read are named, with a way around."""

import pytest

from torchmdx.datasets.other_formats import refusal
from torchmdx.datasets.readers import format_of


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a.lmdb", "is an LMDB database of fairchem .* pickled Python objects, .* .aselmdb with fairchem's own tools"),
        ("a.pt", "write .npz or extended XYZ from it"),
        ("a.parquet", "pip install colabfit-tools"),
        ("a.tar.gz", "unpack it first"),
        ("a.cfg", "is a file of MTP .*: pip install maml"),
    ],
)
def test_what_is_not_read(tmp_path, name, said):
    (tmp_path / name).write_bytes(b"BEGIN_CFG\n Size\n")
    with pytest.raises(ValueError, match=said):
        format_of(tmp_path / name)


def test_others_are_not_refused(tmp_path):
    (tmp_path / "a.cfg").write_text("Number of particles = 2\n")
    (tmp_path / "a.xyz").write_text("1\n\nH 0 0 0\n")
    assert refusal(tmp_path / "a.cfg") is None
    assert format_of(tmp_path / "a.xyz") == "ase"
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "b.aselmdb").touch()
    with pytest.raises(ValueError, match="is a folder of databases: give its files"):
        format_of(tmp_path / "folder")
