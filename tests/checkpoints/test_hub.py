"""Releases by name, with a fake huggingface_hub: tests use no network."""

import hashlib
import json
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import torchmdx
from torchmdx.checkpoints import hub
from torchmdx.checkpoints.locate import locate


class StandIn:
    """A fake huggingface_hub with one file, which counts its calls."""

    def __init__(self, folder: Path, original: Path) -> None:
        self.folder, self.asked = folder, []
        self.path = folder / "aceff_v2.0.ckpt"
        shutil.copy(original, self.path)
        self.stated = hashlib.sha256(original.read_bytes()).hexdigest()
        self.cached = False
        self.failure: Exception | None = None
        self.metadata_failure: Exception | None = None

    def hf_hub_download(self, *, repo_id, filename, revision, local_files_only=False):
        if local_files_only:
            if not self.cached:
                raise FileNotFoundError("not cached")
            return str(self.path)
        self.asked.append((repo_id, filename, revision))
        if self.failure is not None:
            raise self.failure
        self.cached = True
        return str(self.path)

    def HfApi(self):
        return self

    def get_paths_info(self, repo_id, paths, *, revision):
        self.asked.append((repo_id, *paths, revision))
        if self.metadata_failure is not None:
            raise self.metadata_failure
        return [SimpleNamespace(lfs=None if self.stated is None else SimpleNamespace(sha256=self.stated))]


@pytest.fixture
def stand_in(monkeypatch, tmp_path, data) -> StandIn:
    monkeypatch.setenv("TORCHMDX_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    module = StandIn(tmp_path, data / "tensornet2-coulomb.ckpt")
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    return module


def pins(tmp_path) -> dict:
    return json.loads((tmp_path / "cache" / "releases.json").read_text())


def test_a_release_is_fetched_and_checked_by_its_name(stand_in, data, tmp_path):
    potential = torchmdx.load("aceff-2.0")
    assert potential.config == torchmdx.load(data / "tensornet2-coulomb.ckpt").config
    where = ("Acellera/AceFF-2.0", "aceff_v2.0.ckpt", "main")
    assert stand_in.asked == [where, where]  # the file, and what its hash must be
    assert pins(tmp_path) == {"aceff-2.0": stand_in.stated}


def test_a_recorded_release_needs_no_writable_cache(stand_in, monkeypatch, tmp_path):
    torchmdx.load("aceff-2.0")
    stand_in.asked.clear()
    plain = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK and plain(path, mode))
    assert torchmdx.load("aceff-2.0").predicts_charges
    assert stand_in.asked == []
    with pytest.raises(OSError, match="cache cannot be written"):
        torchmdx.load("aceff-1.1")
    assert stand_in.asked == []  # nothing is downloaded whose hash could not be recorded
    assert locate("aceff-2.0", download=False) == stand_in.path
    with pytest.raises(FileNotFoundError, match="is not on this machine with a known hash"):
        locate("aceff-1.1", download=False)
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(OSError, match="cache cannot keep compiled code: it must not be"):
        torchmdx.load("aceff-2.0")


def test_the_calculator_takes_names(stand_in):
    assert torchmdx.Calculator("aceff-2.0", device="cpu").potential.predicts_charges


def test_a_file_of_that_name_comes_first(stand_in, data, tmp_path):
    shutil.copy(data / "tensornet.ckpt", tmp_path / "aceff-2.0")
    assert not torchmdx.load("aceff-2.0").predicts_charges
    assert stand_in.asked == []


def test_the_hash_is_recorded_once_and_the_cache_then_does_without_a_network(stand_in):
    torchmdx.load("aceff-2.0")
    stand_in.failure = stand_in.metadata_failure = OSError("no route to host")
    torchmdx.load("aceff-2.0")
    assert len(stand_in.asked) == 2


def test_a_file_that_left_the_cache_is_fetched_again(stand_in):
    torchmdx.load("aceff-2.0")
    stand_in.cached = False
    torchmdx.load("aceff-2.0")
    assert len(stand_in.asked) == 3


def test_without_permission_nothing_is_downloaded(stand_in, tmp_path):
    for name in ("aceff-2.0", "someone/anything"):
        with pytest.raises(
            FileNotFoundError, match="of the hub is not on this machine with a known hash, and is not downl"
        ):
            locate(name, download=False)
    with pytest.raises(FileNotFoundError, match="is not on this machine"):
        locate("aceff-2.0", "1" * 64, download=False)
    assert stand_in.asked == []
    torchmdx.load("aceff-2.0")
    stand_in.failure = stand_in.metadata_failure = OSError("no route to host")
    assert locate("aceff-2.0", download=False) == stand_in.path
    assert len(stand_in.asked) == 2
    stand_in.cached = False
    with pytest.raises(FileNotFoundError, match=r"torchmdx.load\('aceff-2.0'\) downloads it"):
        locate("aceff-2.0", download=False)
    assert len(stand_in.asked) == 2


def test_a_file_that_is_not_the_one_recorded_is_refused(stand_in, data):
    torchmdx.load("aceff-2.0")
    shutil.copy(data / "tensornet.ckpt", stand_in.path)
    stand_in.stated = hashlib.sha256(stand_in.path.read_bytes()).hexdigest()  # the hub has changed, too
    with pytest.raises(ValueError, match=r"the SHA-256 of '.*aceff_v2.0.ckpt' must be [0-9a-f]{64}, got"):
        torchmdx.load("aceff-2.0")


def test_a_file_that_is_not_what_the_hub_states_is_refused_and_not_recorded(stand_in, tmp_path):
    stand_in.stated = "0" * 64
    with pytest.raises(ValueError, match=f"must be {'0' * 64}, got"):
        torchmdx.load("aceff-2.0")
    assert not list((tmp_path / "cache").glob("*"))


def test_a_hash_that_is_given_decides_alone(stand_in, tmp_path):
    known, stand_in.stated = stand_in.stated, "0" * 64
    assert torchmdx.load("aceff-2.0", sha256=known).predicts_charges
    assert len(stand_in.asked) == 1
    with pytest.raises(ValueError, match=f"must be {'1' * 64}, got {known}"):
        torchmdx.load("aceff-2.0", sha256="1" * 64)


def test_a_hash_that_is_built_in_needs_no_metadata(stand_in, monkeypatch):
    release = hub.Release("Acellera/AceFF-2.0", "aceff_v2.0.ckpt", sha256="2" * 64)
    monkeypatch.setitem(hub.RELEASES, "aceff-2.0", release)
    with pytest.raises(ValueError, match=f"must be {'2' * 64}, got"):
        torchmdx.load("aceff-2.0")
    assert len(stand_in.asked) == 1


@pytest.mark.parametrize("how", ["failure", "missing"])
def test_without_any_hash_nothing_is_loaded(stand_in, how):
    if how == "failure":
        stand_in.metadata_failure = OSError("no route to host")
    else:
        stand_in.stated = None
    with pytest.raises(ValueError, match="no hash of 'aceff-2.0' is recorded, .*: give its SHA-256, which https"):
        torchmdx.load("aceff-2.0")


def test_no_network_says_what_to_do(stand_in):
    stand_in.failure = ConnectionError("no route to host\nand more")
    words = (
        r"'aceff-1.1' could not be downloaded \(ConnectionError: no route to host\): .* download aceff_v1.1.ckpt from"
    )
    with pytest.raises(OSError, match=words):
        torchmdx.load("aceff-1.1")


def test_without_the_library_it_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    words = r"needs huggingface_hub: pip install 'torchmdx\[hub\]'; or download aceff_v1.0.ckpt from https://huggingface.co/A"
    with pytest.raises(ImportError, match=words):
        torchmdx.load("aceff-1.0")


def test_an_unknown_name_is_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="no checkpoint at 'aceff-3.0'"):
        torchmdx.load("aceff-3.0")
    with pytest.raises(
        ValueError, match="name must be one of aceff-1.0, aceff-1.1, aceff-2.0, TensorNet.*, got 'aceff-3.0'"
    ):
        hub.fetch("aceff-3.0")


def test_damaged_records_are_named(stand_in, tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "releases.json").write_text("{")
    with pytest.raises(ValueError, match="releases.json' must hold recorded hashes as JSON .*; delete it"):
        torchmdx.load("aceff-2.0")


class Folder:
    """A fake huggingface_hub with a potential of matgl, whose model.json has only git's hash."""

    def __init__(self, folder: Path, original: Path) -> None:
        self.folder = folder / "snapshot"
        shutil.copytree(original, self.folder)
        weights = (self.folder / "state.pt").read_bytes()
        description = (self.folder / "model.json").read_bytes()
        blob = hashlib.sha1(b"blob %d\0" % len(description) + description).hexdigest()
        self.stated = {
            "state.pt": SimpleNamespace(lfs=SimpleNamespace(sha256=hashlib.sha256(weights).hexdigest()), blob_id="0"),
            "model.json": SimpleNamespace(lfs=None, blob_id=blob),
        }
        self.asked, self.offline = [], False

    def hf_hub_download(self, *, repo_id, filename, revision, local_files_only=False):
        if local_files_only:
            return str(self.folder / filename)
        self.asked.append((repo_id, filename))
        if self.offline:
            raise ConnectionError("no route to host")
        return str(self.folder / filename)

    def HfApi(self):
        return self

    def get_paths_info(self, repo_id, paths, *, revision):
        return [self.stated[name] for name in paths]


@pytest.fixture
def matgl(monkeypatch, tmp_path, data) -> Folder:
    monkeypatch.setenv("TORCHMDX_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    module = Folder(tmp_path, data / "matgl" / "gauss")
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    return module


@pytest.mark.parametrize(
    ("name", "repository"),
    [
        ("TensorNet-PES-MatPES-PBE-2025.2", "materialyze/TensorNet-PES-MatPES-PBE-2025.2"),
        ("TensorNet-PES-MatPES-r2SCAN-2025.2-m", "materialyze/TensorNet-PES-MatPES-r2SCAN-2025.2-m"),
        ("TensorNet-PES-ANI-1x-Subset", "materialyze/TensorNet-PES-ANI-1x-Subset"),
        ("someone/their-potential", "someone/their-potential"),
    ],
)
def test_a_release_of_several_files_is_fetched_and_every_file_pinned(matgl, tmp_path, name, repository):
    assert torchmdx.load(name).config.head == "gated"
    assert matgl.asked == [(repository, "model.json"), (repository, "state.pt")]
    recorded = pins(tmp_path)
    digests = [hashlib.sha256((matgl.folder / file).read_bytes()).hexdigest() for file in ("state.pt", "model.json")]
    assert recorded == {name: digests[0], f"{name}/model.json": digests[1]}
    matgl.offline = True
    assert torchmdx.Calculator(name, device="cpu").potential.config.head == "gated"


@pytest.mark.parametrize(
    ("file", "words"), [("state.pt", "the SHA-256 of '.*state.pt'"), ("model.json", "git's hash of '.*model.json'")]
)
def test_no_file_of_a_release_may_differ_from_what_the_hub_states(matgl, tmp_path, file, words):
    (matgl.folder / file).write_bytes((matgl.folder / file).read_bytes() + b" ")
    with pytest.raises(ValueError, match=f"{words} must be"):
        torchmdx.load("TensorNet-PES-MatPES-PBE-2025.2")
    assert not (tmp_path / "cache" / "releases.json").exists()


@pytest.mark.parametrize("file", ["state.pt", "model.json"])
def test_no_file_of_a_release_may_change_later(matgl, file):
    torchmdx.load("TensorNet-PES-MatPES-PBE-2025.2")
    (matgl.folder / file).write_bytes((matgl.folder / file).read_bytes() + b" ")
    with pytest.raises(ValueError, match=f"the SHA-256 of '.*{file}' must be"):
        torchmdx.load("TensorNet-PES-MatPES-PBE-2025.2")


def test_a_path_that_does_not_exist_is_not_sought_on_the_hub(matgl, tmp_path):
    (tmp_path / "run").mkdir()
    for path in ("run/best", "other/best.safetensors", "a/b/c"):
        with pytest.raises(FileNotFoundError, match="no checkpoint at"):
            torchmdx.load(path)
    assert matgl.asked == []


def test_a_repository_that_cannot_be_reached_is_a_missing_file(matgl, monkeypatch):
    matgl.offline = True
    words = (
        "no checkpoint at 'someone/else', and no potential of matgl in the repository https://huggingface.co/someone/e"
    )
    with pytest.raises(FileNotFoundError, match=words):
        torchmdx.load("someone/else")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(FileNotFoundError, match=words):
        torchmdx.load("someone/else")


def test_a_given_hash_is_that_of_the_weights(matgl, data):
    known = hashlib.sha256((data / "matgl" / "gauss" / "state.pt").read_bytes()).hexdigest()
    assert torchmdx.load("TensorNet-PES-MatPES-PBE-2025.2", sha256=known)
    assert torchmdx.load(data / "matgl" / "gauss", sha256=known)
    with pytest.raises(ValueError, match=f"must be {'1' * 64}, got {known}"):
        torchmdx.load(data / "matgl" / "gauss", sha256="1" * 64)
