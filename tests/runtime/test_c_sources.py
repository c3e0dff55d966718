"""The table of C libraries."""

from pathlib import Path

import pytest

import torchmdx
from torchmdx.runtime.c_sources import LIBRARIES, packaged_file, texts

PACKAGE = Path(torchmdx.__file__).parent


@pytest.mark.parametrize("name", LIBRARIES)
def test_the_sources_are_in_the_package(name):
    source = PACKAGE / LIBRARIES[name][0]
    assert source.read_text() in texts(PACKAGE, name)


def test_a_packaged_file_has_the_hash_of_its_sources(tmp_path):
    def put(text):
        (tmp_path / "neighbors" / "backends").mkdir(parents=True, exist_ok=True)
        (tmp_path / "neighbors" / "backends" / "cell_list.c").write_text(text)
        return packaged_file(tmp_path, "cell_list")

    first, other = put("one"), put("two")
    assert first.parent == other.parent == tmp_path / "neighbors" / "backends"
    assert first.name.startswith("cell_list-")
    assert first != other
    assert put("one") == first
