"""Files that are damaged or made to harm: each is read with a sound result, or refused with an error that names it."""

import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from damage import faults
from damage_formats import FORMATS
from safetensors import safe_open
from safetensors.torch import save_file

import torchmdx
from torchmdx.runtime.damaged_file import naming

QUICK, LONG = 12, 120  # damaged files of each format


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files_are_read_or_refused(name, tmp_path):
    wrong = faults(FORMATS[name], QUICK, 1, tmp_path)
    assert not wrong, "\n".join(wrong)


@pytest.mark.nightly
@pytest.mark.slow
def test_thousands_of_damaged_files():
    """In a process of its own, with its memory limited; after a crash the last line names the format."""
    command = [sys.executable, str(Path(__file__).with_name("damage.py")), ",".join(FORMATS), str(LONG)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800)
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    assert [line.partition(": ")[0] for line in done.stdout.splitlines()] == [*FORMATS]


@pytest.fixture
def saved(make_potential, tmp_path) -> Path:
    torchmdx.save(make_potential(), tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def changed(path: Path, **metadata) -> Path:
    """The file with other metadata, and without its weights: nothing may be allocated for them."""
    with safe_open(path, framework="pt") as file:
        words = file.metadata()
    save_file({"x": torch.zeros(1)}, path, {**words, **metadata})
    return path


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("num_channels", 200_000, "num_channels must be <= 4096, got 200000"),
        ("num_channels", 10**30, "num_channels must be <= 4096"),
        ("num_channels", 4096, "do not fit its configuration: missing"),
        ("num_radial", 10**9, "num_radial must be <= 4096"),
        ("num_layers", 10**7, "num_layers must be <= 64"),
        ("num_head_layers", 10**7, "num_head_layers must be <= 64"),
        ("max_z", 10**12, "max_z must be <= 118"),
        ("cutoff", 1e-300, "cutoff must be from 0.1 to 100.0 Å"),
        ("cutoff", float("nan"), "cutoff must be > 0 Å and finite, got nan"),
        ("cutoff", 10**400, "cutoff must be from 0.1 to 100.0 Å"),
        ("radial_basis", [], "radial_basis must be one of"),
    ],
)
def test_sizes_in_a_configuration_are_bounded(saved, setting, value, message):
    with safe_open(saved, framework="pt") as file:
        config = json.loads(file.metadata()["config"])
    with pytest.raises(ValueError, match=f"model.safetensors'.*{message}"):
        torchmdx.load(changed(saved, config=json.dumps({**config, setting: value})))


@pytest.mark.parametrize("text", ["[" * 100_000, "1" * 5000], ids=["nested", "long number"])
@pytest.mark.parametrize("key", ["config", "priors"])
def test_json_that_python_cannot_parse_is_refused(saved, key, text):
    with pytest.raises(ValueError, match="model.safetensors' holds no readable configuration"):
        torchmdx.load(changed(saved, **{key: text}))


def test_more_priors_than_sense_are_refused(saved):
    with pytest.raises(ValueError, match="must have at most 16 priors, got 1000 in '.*model.safetensors'"):
        torchmdx.load(changed(saved, priors=json.dumps([{"prior": "zbl"}] * 1000)))


@pytest.mark.parametrize(
    "text", ["{}", "[]", '{"energies": [1.0], "structures": [{"numbers": [1]}, {"numbers": [1]}]}']
)
def test_recorded_energies_that_are_none_are_refused(saved, text):
    with safe_open(saved, framework="pt") as file:
        held = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        words = file.metadata()
    save_file(held, saved, {**words, "energies": text})
    with pytest.raises(ValueError, match="model.safetensors' records no readable energies"):
        torchmdx.load(saved)


def test_a_recorded_structure_may_not_take_for_ever(saved):
    with safe_open(saved, framework="pt") as file:
        held = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        words = file.metadata()
    cell = [[1e-6, 0, 0], [0, 1, 0], [0, 0, 1]]
    structure = {"numbers": [1], "positions": [[0, 0, 0]], "cell": cell, "charge": 0.0, "charges": [0.0]}
    save_file(held, saved, {**words, "energies": json.dumps({"energies": [1.0], "structures": [structure]})})
    with pytest.raises(ValueError, match="recorded structures of '.*model.safetensors' must be small"):
        torchmdx.load(saved)


def test_weights_that_are_not_finite_are_refused(saved):
    with safe_open(saved, framework="pt") as file:
        held = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        words = file.metadata()
    held["network.readout.bias"][0] = torch.nan
    save_file(held, saved, words)
    with pytest.raises(ValueError, match="network.readout.bias in '.*model.safetensors' must be finite"):
        torchmdx.load(saved)


def foreign(data: Path, change) -> bytes:
    """A checkpoint of torchmd-net, whose files inside are changed by their names."""
    made = io.BytesIO()
    with zipfile.ZipFile(data / "tensornet-0layer.ckpt") as old, zipfile.ZipFile(made, "w") as new:
        for name in old.namelist():
            new.writestr(name, *change(name, old.read(name)))
    return made.getvalue()


def load_foreign(content: bytes, folder: Path):
    (folder / "foreign.ckpt").write_bytes(content)
    return torchmdx.load(folder / "foreign.ckpt")


def test_a_storage_larger_than_what_the_file_holds_is_refused(data, tmp_path):
    """torch.load would read beyond its numbers."""
    content = foreign(data, lambda name, held: (held[:4] if name.endswith("data/5") else held,))
    with pytest.raises(ValueError, match="foreign.ckpt' is not a readable checkpoint .*must have .* bytes, got 4"):
        load_foreign(content, tmp_path)


def test_a_zip_bomb_is_refused(data, tmp_path):
    bomb = bytes(1 << 26), zipfile.ZIP_DEFLATED
    content = foreign(data, lambda name, held: bomb if name.endswith("data/5") else (held,))
    with pytest.raises(ValueError, match="foreign.ckpt' .*must not unpack to"):
        load_foreign(content, tmp_path)


@pytest.mark.parametrize("shape", [(10**12,), (10**6, 10**6)])
def test_a_small_storage_seen_as_a_large_tensor_is_refused(data, tmp_path, shape):
    held = torch.load(data / "tensornet-0layer.ckpt", weights_only=True)
    name = next(iter(held["state_dict"]))
    held["state_dict"][name] = torch.zeros(1).as_strided(shape, [0] * len(shape))
    made = io.BytesIO()
    torch.save(held, made)
    with pytest.raises(ValueError, match="foreign.ckpt' .*must lie in its storage of 1 numbers"):
        load_foreign(made.getvalue(), tmp_path)


def test_settings_that_hold_themselves_are_refused(data, tmp_path):
    held = torch.load(data / "tensornet-0layer.ckpt", weights_only=True)
    loop: list = []
    loop += [loop, loop]
    held["hyper_parameters"]["activation"] = loop
    made = io.BytesIO()
    torch.save(held, made)
    with pytest.raises(ValueError, match="settings of '.*foreign.ckpt' must be at most"):
        load_foreign(made.getvalue(), tmp_path)


def test_an_error_is_named_once_and_those_of_the_file_system_pass():
    with pytest.raises(ValueError, match="^'a.b': wrong$"), naming("a.b"), naming("a.b"):
        raise ValueError("wrong")
    with pytest.raises(ValueError, match="^'a.b' is damaged .KeyError: 'x'.$"), naming("a.b"):
        raise KeyError("x")
    with pytest.raises(FileNotFoundError), naming("a.b"):
        raise FileNotFoundError("b")


def test_a_journal_whose_settings_are_damaged_keeps_its_records(tmp_path):
    kind = FORMATS["journal"]
    path = kind.make(tmp_path)
    records = kind.unpack(path.read_bytes())
    path.write_bytes(kind.pack([records[1]], b""))
    before = path.read_bytes()
    with pytest.raises(ValueError, match="labels.journal' is damaged: it must begin with the settings of its run"):
        kind.read(path)
    assert path.read_bytes() == before


def test_a_damaged_exact_checkpoint_is_known_by_its_checksum():
    pytest.importorskip("openmm")
    from torchmdx.commands.md_openmm.checkpoint import sealed, unsealed

    data = bytearray(sealed(b"state" * 9))
    assert unsealed(bytes(data)) == b"state" * 9
    data[3] ^= 1
    with pytest.raises(ValueError, match="it is damaged: its checksum does not match"):
        unsealed(bytes(data))
    with pytest.raises(ValueError, match="it is damaged or has no checksum"):
        unsealed(b"state" * 9)


@pytest.mark.parametrize(("name", "value"), [("pbc.bin", 2), ("atomic_numbers.bin", 0), ("atomic_numbers.bin", 92)])
def test_entries_that_no_store_was_written_with_are_refused(tmp_path, name, value):
    kind = FORMATS[name]
    path = kind.make(tmp_path)
    path.write_bytes(bytes([value]) + path.read_bytes()[1:])
    with pytest.raises(ValueError, match=f"{name} of the store '.*set.store' is damaged, got {value}"):
        kind.read(path)
