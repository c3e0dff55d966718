"""Released potentials in a mirror folder, on a machine without network and without huggingface_hub."""

import hashlib
import json
import os
import shutil
import sys

import pytest

import torchmdx
from torchmdx.checkpoints import hub
from torchmdx.checkpoints.locate import locate

FILE = "aceff_v2.0.ckpt"


@pytest.fixture
def mirror(monkeypatch, tmp_path, data):
    """A mirror with one potential, and no way to download."""
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.setenv("TORCHMDX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCHMDX_MIRROR", str(tmp_path / "mirror"))
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "mirror" / "aceff-2.0"
    folder.mkdir(parents=True)
    shutil.copy(data / "tensornet2-coulomb.ckpt", folder / FILE)
    return tmp_path / "mirror"


def digest(path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def list_hash(mirror, name=f"aceff-2.0/{FILE}", separator="  ", place="") -> None:
    path = mirror / name
    sums = mirror / place / "SHA256SUMS"
    sums.write_text(f"{'0' * 64}  other.ckpt\n{digest(path)}{separator}{path.relative_to(sums.parent)}\n")


@pytest.mark.parametrize(("separator", "place"), [("  ", ""), (" *", ""), ("  ", "aceff-2.0")])
def test_a_potential_is_found_by_name_and_hash(mirror, data, separator, place):
    list_hash(mirror, separator=separator, place=place)
    assert locate("aceff-2.0") == mirror / "aceff-2.0" / FILE
    assert locate("aceff-2.0", download=False) == mirror / "aceff-2.0" / FILE
    assert torchmdx.load("aceff-2.0").config == torchmdx.load(data / "tensornet2-coulomb.ckpt").config
    assert not (mirror.parent / "cache" / "releases.json").exists()


def test_another_hash_is_refused(mirror):
    list_hash(mirror)
    known = digest(mirror / "aceff-2.0" / FILE)
    assert locate("aceff-2.0", known) == mirror / "aceff-2.0" / FILE
    with pytest.raises(ValueError, match=f"must be {'1' * 64}, got {known}"):
        locate("aceff-2.0", "1" * 64)
    with (mirror / "aceff-2.0" / FILE).open("ab") as file:
        file.write(b"more")
    with pytest.raises(ValueError, match=f"SHA-256 of '.*{FILE}' must be {known}, got"):
        torchmdx.load("aceff-2.0")


def test_a_hash_must_be_known(mirror):
    with pytest.raises(ValueError, match=r"no hash of '.*aceff_v2.0.ckpt' is known, .* list it in '.*/SHA256SUMS'"):
        locate("aceff-2.0")
    assert locate("aceff-2.0", digest(mirror / "aceff-2.0" / FILE))
    (mirror / "SHA256SUMS").write_text("abc\n")
    with pytest.raises(ValueError, match=r"line 1 of '.*SHA256SUMS' must be a hash and a file, got 'abc'"):
        locate("aceff-2.0")


def test_a_hash_recorded_at_a_download_comes_first(mirror):
    list_hash(mirror)
    (mirror.parent / "cache").mkdir(mode=0o700)
    pins = mirror.parent / "cache" / "releases.json"
    pins.write_text(json.dumps({"aceff-2.0": "2" * 64}))
    with pytest.raises(ValueError, match=f"must be {'2' * 64}, got"):
        locate("aceff-2.0")


def test_other_places_in_a_mirror(mirror, monkeypatch):
    other = mirror.parent / "second"
    for place in ("Acellera/AceFF-2.0", "."):
        (other / place).mkdir(parents=True, exist_ok=True)
        (mirror / "aceff-2.0" / FILE).rename(other / place / FILE)
        list_hash(other, f"{place}/{FILE}")
        monkeypatch.setenv("TORCHMDX_MIRROR", f"{mirror}{os.pathsep}{other}")
        assert locate("aceff-2.0") == other / place / FILE
        (other / place / FILE).rename(mirror / "aceff-2.0" / FILE)


def test_a_potential_of_several_files(mirror, data):
    folder = mirror / "TensorNet-PES-MatPES-PBE-2025.2"
    shutil.copytree(data / "matgl" / "gauss", folder)
    names = [f"{folder.name}/{name}" for name in ("model.json", "state.pt")]
    (mirror / "SHA256SUMS").write_text("".join(f"{digest(mirror / name)}  {name}\n" for name in names))
    assert locate(folder.name) == folder
    assert torchmdx.load(folder.name).config.head == "gated"
    (folder / "model.json").write_text("{}")
    with pytest.raises(ValueError, match="SHA-256 of '.*model.json' must be"):
        torchmdx.load(folder.name)


def test_what_is_in_no_mirror_is_asked_of_the_hub(mirror, monkeypatch):
    with pytest.raises(ImportError, match=r"needs huggingface_hub.* into a mirror folder \(\$TORCHMDX_MIRROR\)"):
        locate("aceff-1.1")
    monkeypatch.setenv("TORCHMDX_MIRROR", str(mirror / "missing"))
    with pytest.raises(FileNotFoundError, match=r"\$TORCHMDX_MIRROR must name folders, got '.*missing', which is none"):
        locate("aceff-2.0")


@pytest.mark.parametrize("name", ["aceff-2-resp-1", "Acellera/AceFF-2-RESP-1"])
def test_relatives_are_refused_by_name(mirror, name):
    with pytest.raises(ValueError, match=f"{name}' is not supported: its model tensornet2_resp has a head of RESP"):
        torchmdx.load(name)
    assert hub.release_of("aceff-2-resp-1") is None
