"""The table of formats: a new one takes a module and a line, files are read once, and none is run."""

import builtins
import hashlib
import io
import os
import shutil
import sys
import zipfile
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
import torch

import torchmdx
from torchmdx.checkpoints.formats import table
from torchmdx.checkpoints.locate import locate
from torchmdx.commands.cli import main

# A format as a stranger would add it, in one file.
SPRINGS = '''
"""Potentials as text: a number of channels for each line."""

import torch

from torchmdx import Potential, TensorNetConfig
from torchmdx.checkpoints.formats.reading import Reading, Report

ENDINGS = (".springs",)
WEIGHTS = "springs.bin"


def recognizes(source):
    return source.data.startswith(b"springs ") or source.has_part("springs.bin")


def read(source):
    data = source.part("springs.bin") if source.is_folder else source.data
    if len(data) != 9:
        raise ValueError(f"{source.origin!r} must have 9 bytes, got {len(data)}")
    torch.manual_seed(0)
    config = TensorNetConfig(num_channels=int(data[8:]), num_layers=0, num_radial=4, max_z=8)
    report = Report(source.origin, source.sha256)
    report.read.append("springs")
    return Reading(Potential(config), report)
'''


@pytest.fixture
def springs(monkeypatch, tmp_path):
    """The format, in the table."""
    module = ModuleType("springs")
    exec(SPRINGS, module.__dict__)
    monkeypatch.setattr(table, "FORMATS", (*table.FORMATS, module))
    monkeypatch.chdir(tmp_path)
    Path("a.springs").write_bytes(b"springs 4")


def test_a_new_format_is_read_wherever_potentials_are(springs, capsys):
    assert torchmdx.load("a.springs").config.num_channels == 4
    torchmdx.Calculator("a.springs", device="cpu")
    Path("folder").mkdir()
    shutil.copy("a.springs", "folder/springs.bin")
    assert locate("folder") == Path("folder")
    sha256 = hashlib.sha256(Path("a.springs").read_bytes()).hexdigest()
    assert torchmdx.load("folder", sha256=sha256).config.num_channels == 4
    with pytest.raises(ValueError, match="the SHA-256 of 'folder/springs.bin' must be 000"):
        torchmdx.load("folder", sha256="0" * 64)
    assert isinstance(torchmdx.load(["a.springs", "folder"]), torchmdx.Ensemble)
    assert main(["info", "a.springs"]) == 0
    assert "read: springs" in capsys.readouterr().out
    assert main(["convert", "a.springs", "converted.safetensors"]) == 0
    same = zip(
        torchmdx.load("a.springs").parameters(), torchmdx.load("converted.safetensors").parameters(), strict=True
    )
    assert all(torch.equal(one, other) for one, other in same)
    assert main(["evaluate", "a.springs"]) == 2
    assert "evaluate needs labelled structures, got only the potential 'a.springs'" in capsys.readouterr().err


def test_errors_of_a_new_format_name_the_file(springs):
    Path("b.springs").write_bytes(b"springs \x04\x04\xff")
    with pytest.raises(ValueError, match="'b.springs' must have 9 bytes, got 11"):
        torchmdx.load("b.springs")


@pytest.fixture
def opened(monkeypatch, tmp_path) -> Counter:
    """How often files in the folder of the test are opened to be read."""
    counts: Counter = Counter()
    plain = io.open

    def counting(file, mode="r", *args, **settings):
        if isinstance(file, (str, os.PathLike)) and str(file).startswith(str(tmp_path)) and "r" in mode:
            counts[Path(file).name] += 1
        return plain(file, mode, *args, **settings)

    monkeypatch.setattr(io, "open", counting)
    monkeypatch.setattr(builtins, "open", counting)
    return counts


@pytest.mark.parametrize("kind", ["safetensors", "ckpt", "ensemble", "zip", "matgl"])
def test_a_file_is_read_once(kind, make_potential, data, tmp_path, opened):
    potential = make_potential(num_channels=4, num_layers=0)
    path = tmp_path / {"safetensors": "a.safetensors", "ensemble": "a.safetensors", "zip": "a.zip"}.get(kind, "a.ckpt")
    names = {path.name}
    if kind == "matgl":
        shutil.copytree(data / "matgl" / "bessel-2", tmp_path / "matgl")
        path, names = tmp_path / "matgl", {"model.json", "state.pt"}
    elif kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            for k in range(2):
                archive.write(data / "tensornet-0layer.ckpt", f"{k}.ckpt")
    elif kind == "ckpt":
        shutil.copy(data / "tensornet-0layer.ckpt", path)
    else:
        torchmdx.save(
            potential
            if kind == "safetensors"
            else torchmdx.Ensemble([potential, make_potential(num_channels=4, num_layers=0, seed=1)]),
            path,
        )
    weights = path / "state.pt" if kind == "matgl" else path
    sha256 = hashlib.sha256(weights.read_bytes()).hexdigest()
    for reading in (lambda: torchmdx.load(path), lambda: torchmdx.load(path, sha256=sha256)):
        opened.clear()
        reading()
        assert {name: opened[name] for name in opened if name in names} == dict.fromkeys(names, 1)
    opened.clear()
    assert main(["convert", str(path), str(tmp_path / "converted.safetensors"), "--sha256", sha256]) == 0
    assert {name: opened[name] for name in names} == dict.fromkeys(names, 1)


def test_formats_are_modules_of_functions_and_endings():
    for one in (*table.FORMATS, *table.ENSEMBLES):
        assert sys.modules[one.__name__] is one
        assert all(ending.startswith(".") for ending in one.ENDINGS)
    assert {".safetensors", ".ckpt", ".pt", ".pth", ".zip"} <= set(table.endings())
