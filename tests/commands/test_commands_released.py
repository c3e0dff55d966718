"""`torchmdx info` of a released potential: what is known of it, what its file holds, and what runs where."""

import hashlib
import shutil
import sys

import pytest

from torchmdx.commands import cli
from torchmdx.commands.released import lines_of_machines


@pytest.fixture
def mirror(monkeypatch, tmp_path, data):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.setenv("TORCHMDX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCHMDX_MIRROR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    source = data / "tensornet2-coulomb.ckpt"
    shutil.copy(source, tmp_path / "aceff_v2.0.ckpt")
    (tmp_path / "SHA256SUMS").write_text(f"{hashlib.sha256(source.read_bytes()).hexdigest()}  aceff_v2.0.ckpt\n")
    return tmp_path


def test_info_of_a_released_potential(mirror, capsys):
    assert cli.main(["info", "aceff-2.0"]) == 0
    out = capsys.readouterr().out
    for words in (
        "aceff-2.0: TensorNet2, H B C N O F Si P S Cl Br I; molecules, charged ones too",
        "licence: Apache 2.0",
        "page: https://huggingface.co/Acellera/AceFF-2.0",
        f"file: aceff_v2.0.ckpt, in the mirror {mirror}",
        "TensorNet2, 2 layers, 16 channels",
        "periodic structures, which the file cannot do, are summed over all images",
        "and on other machines:",
        "  CPU       network in C on the CPU, priors separately",
        "  H100      fused kernels, priors separately",
    ):
        assert words in out


def test_the_plan_of_a_molecule_is_not_that_of_a_box(mirror, capsys):
    """A molecule has all pairs instead of an Ewald sum, and needs no list beyond the network's cutoff."""
    of_boxes = ("Ewald sum", "one of the network's own")
    for options, there in (((), False), (("--periodic",), True)):
        assert cli.main(["info", "aceff-2.0", "--atoms", "15", "--card", "H100", *options]) == 0
        out = capsys.readouterr().out
        assert ("for one periodic structure with its stress" in out) == there
        assert "prior coulomb  " in out
        assert [words in out for words in of_boxes] == [there, there]


def test_what_is_known_comes_before_the_error(mirror, capsys):
    assert cli.main(["info", "aceff-1.0"]) == 2
    out, err = capsys.readouterr()
    assert "page: https://huggingface.co/Acellera/AceFF-1.0" in out
    assert "downloading 'aceff-1.0' needs huggingface_hub" in err


def test_the_list_of_potentials_names_copies_in_a_mirror(mirror, monkeypatch, capsys):
    monkeypatch.setattr("torchmdx.commands.info._version", lambda name: None if name == "huggingface_hub" else "1")
    cli.main(["info"])
    lines = {line.split()[1]: line for line in capsys.readouterr().out.splitlines() if " aceff-" in line}
    assert lines["aceff-2.0"].startswith("  ok ")
    assert f"in the mirror {mirror}; licence: Apache 2.0" in lines["aceff-2.0"]
    assert lines["aceff-1.0"].startswith("  -- ")
    assert lines["aceff-1.0"].endswith("needs pip install 'torchmdx[hub]'")


def test_the_list_goes_on_where_a_mirror_is_not_there(mirror, monkeypatch, capsys):
    monkeypatch.setenv("TORCHMDX_MIRROR", str(mirror / "none"))
    cli.main(["info"])
    out = capsys.readouterr().out
    assert f"a mirror folder                       $TORCHMDX_MIRROR must name folders, got '{mirror / 'none'}'" in out
    assert "downloaded on first use from https://huggingface.co/Acellera/AceFF-2.0" in out
    assert "the installation is " in out


def test_a_file_of_that_name_is_no_release(mirror, data, capsys):
    shutil.copy(data / "tensornet.ckpt", mirror / "aceff-2.0")
    assert cli.main(["info", "aceff-2.0"]) == 0
    assert "licence" not in capsys.readouterr().out


def test_many_atoms_have_a_line_of_their_own_where_they_differ(make_potential):
    lines = lines_of_machines(make_potential())
    assert [line.split()[0] for line in lines].count("CPU") == 1
    assert any(line.endswith("2,500 atoms or more") for line in lines)
