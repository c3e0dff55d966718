"""The formats that torchmdx reads: a small file of each, how its fields are changed, and how it is read and checked."""

import io
import json
import math
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import torchmdx
from torchmdx.checkpoints.formats.reading import Report
from torchmdx.checkpoints.formats.torchmdnet import archive
from torchmdx.datasets import ase_files, hdf5_files, npz_files, torchmdnet_files
from torchmdx.datasets.blocks import FrameBlock, Keys
from torchmdx.datasets.checks import broken
from torchmdx.datasets.frames import Frames
from torchmdx.datasets.index_files import read_indices
from torchmdx.datasets.index_files import read_torchmdnet as read_parts
from torchmdx.datasets.labelling.geometry import Labels, UnlabelledStructure
from torchmdx.datasets.labelling.journal import MAGIC, PREFIX, Journal, _record
from torchmdx.datasets.labelling.ledger import Failure, Ledger, Sampled
from torchmdx.datasets.splits import read_split, write_split
from torchmdx.datasets.store import Store, StoreWriter
from torchmdx.models.priors.coulomb import CoulombConfig
from torchmdx.models.priors.zbl import ZBLConfig
from torchmdx.models.tensornet2 import TensorNet2Config
from torchmdx.training.epoch_means import TERMS
from torchmdx.training.state import read_state, write_state

DATA = Path(__file__).parent / "data"
SETTINGS = {"calculator": "emt"}


@dataclass(frozen=True, kw_only=True)
class Format:
    """make: writes a sound file into a folder. read: raises unless a file is sound. root: what errors have to name.

    unpack, pack: the file's fields as JSON, and the file with others. is_zip: one that is damaged inside as well.
    """

    name: str
    make: Callable[[Path], Path]
    read: Callable[[Path], object]
    root: Callable[[Path], Path] = lambda path: path
    unpack: Callable[[bytes], object] | None = None
    pack: Callable[[object, bytes], bytes] | None = None
    is_zip: bool = False


# Potentials


def _potential(seed: int = 0) -> torchmdx.Potential:
    torch.manual_seed(seed)
    config = TensorNet2Config(num_channels=4, num_layers=1, num_radial=4, max_z=9, cutoff=3.0, num_charges=2)
    potential = torchmdx.Potential(config, [ZBLConfig(), CoulombConfig(cutoff=4.0)])
    potential.card = torchmdx.models.model_card.Card(name="small", elements=(1, 6, 8), charges=(0.0, 1.0))
    return potential


def _make_own(folder: Path) -> Path:
    torchmdx.save(_potential(), folder / "own.safetensors", report=Report("a.ckpt", "0" * 64))
    return folder / "own.safetensors"


def _make_ensemble(folder: Path) -> Path:
    members = [_potential(seed).requires_grad_(False) for seed in range(2)]
    torchmdx.save(torchmdx.models.ensemble.Ensemble(members, ["a", "b"]), folder / "several.safetensors")
    return folder / "several.safetensors"


def _read_potential(path: Path) -> None:
    loaded = torchmdx.load(path)
    for potential in loaded if isinstance(loaded, torchmdx.models.ensemble.Ensemble) else [loaded]:
        assert potential.config.cutoff <= 100
        for name, parameter in potential.named_parameters():
            assert "elements" in name or parameter.isfinite().all()


def _unpack_safetensors(data: bytes) -> object:
    return json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])


def _pack_safetensors(value: object, data: bytes) -> bytes:
    head = json.dumps(value).encode()
    return struct.pack("<Q", len(head)) + head + data[8 + int.from_bytes(data[:8], "little") :]


def _make_ckpt(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / "foreign.ckpt").write_bytes((DATA / f"{name}.ckpt").read_bytes())
        return folder / "foreign.ckpt"

    return make


def _unpack_ckpt(data: bytes) -> object:
    held = archive.load(data)
    return {
        "options": held["hyper_parameters"],
        "shapes": {name: list(t.shape) for name, t in held["state_dict"].items()},
    }


def _pack_ckpt(value: object, data: bytes) -> bytes:
    """Settings as they are now, and tensors of other shapes as views of few numbers."""
    held = archive.load(data)
    value = value if isinstance(value, dict) else {"options": value}
    weights = dict(held["state_dict"])
    shapes = value.get("shapes")
    for name, shape in (shapes if isinstance(shapes, dict) else {}).items():
        old = weights.pop(name, torch.zeros(1))
        if shape != list(old.shape):
            small = (
                isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape) and math.prod(shape) < 2**62
            )
            weights[name] = torch.zeros(1).as_strided(shape, [0] * len(shape)) if small else shape
        else:
            weights[name] = old
    made = io.BytesIO()
    torch.save({"hyper_parameters": value.get("options"), "state_dict": weights}, made)
    return made.getvalue()


def _make_zip(folder: Path) -> Path:
    import zipfile

    with zipfile.ZipFile(folder / "several.zip", "w") as made:
        for k in range(2):
            made.writestr(f"{k}.ckpt", (DATA / "tensornet-0layer.ckpt").read_bytes())
    return folder / "several.zip"


# Data


def _frames(count: int = 6) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    return {
        "R": draw.normal(size=(count, 4, 3)) * 3,
        "z": np.array([8, 1, 1, 6]),
        "E": draw.normal(size=count),
        "F": draw.normal(size=(count, 4, 3)),
    }


def _make_npz(folder: Path) -> Path:
    np.savez(folder / "frames.npz", **_frames())
    return folder / "frames.npz"


def _make_folder(folder: Path) -> Path:
    (folder / "custom").mkdir(exist_ok=True)
    held = _frames()
    for name, key in (("coord", "R"), ("embed", "z"), ("energy", "E"), ("force", "F")):
        np.save(folder / "custom" / f"{name}.npy", held[key])
    return folder / "custom" / "coord.npy"


def _make_hdf5(folder: Path) -> Path:
    import h5py

    held = _frames()
    with h5py.File(folder / "frames.h5", "w") as file:
        for k in range(2):
            group = file.create_group(f"m{k}")
            group["pos"], group["types"], group["energy"] = held["R"], held["z"], held["E"]
            group.create_dataset("forces", data=held["F"], chunks=(2, 4, 3), compression="gzip")
    return folder / "frames.h5"


def _unpack_hdf5(data: bytes) -> object:
    return {"pos": [6, 4, 3], "types": [4], "energy": [6], "forces": [6, 4, 3]}


def _pack_hdf5(value: object, data: bytes) -> bytes:
    """Arrays of these shapes that are described, and not stored."""
    import h5py

    made = io.BytesIO()
    with h5py.File(made, "w") as file:
        group = file.create_group("m")
        for name, shape in (value if isinstance(value, dict) else {}).items():
            try:
                chunks = tuple(max(1, min(int(length), 2)) for length in shape)  # h5py's own guess may take for ever
                group.create_dataset(str(name) or "x", shape=tuple(shape), chunks=chunks or None, dtype="f8")
            except (TypeError, ValueError, OverflowError, OSError):
                group[str(name) or "x"] = str(shape)[:100].replace("\0", "")
    return made.getvalue()


def _make_xyz(folder: Path) -> Path:
    import ase.io
    from ase import Atoms
    from ase.calculators.singlepoint import SinglePointCalculator

    held, frames = _frames(), []
    for k in range(4):
        atoms = Atoms(held["z"], held["R"][k], cell=[9, 9, 9], pbc=True)
        atoms.calc = SinglePointCalculator(atoms, energy=held["E"][k], forces=held["F"][k])
        frames.append(atoms)
    ase.io.write(folder / "frames.xyz", frames)
    return folder / "frames.xyz"


def _check_blocks(blocks) -> None:
    for found in blocks:
        if isinstance(found, FrameBlock):
            broken(found.frames, found.claimed)


def _make_store(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        held = _frames()
        with StoreWriter(folder / "set.store", units={"energy": "eV"}, overwrite=True) as writer:
            for k, positions in enumerate(held["R"]):
                frame = Frames.single(positions, held["z"], energy=held["E"][k], forces=held["F"][k])
                writer.add(frame, "a.xyz", k)
        return folder / "set.store" / name

    return make


def _read_store(path: Path) -> None:
    store = Store.open(path.parent)
    frames = store.gather(np.arange(len(store)))
    assert np.isfinite(frames.positions).all()
    assert ((frames.atomic_numbers >= 1) & (frames.atomic_numbers <= 118)).all()
    for index in range(len(store)):
        store.origin(index)


def _make_split(folder: Path) -> Path:
    _make_store("store.json")(folder)
    parts = {"train": np.array([0, 1, 2]), "validation": np.array([3]), "test": np.array([4])}
    write_split(folder / "split.json", parts, Store.open(folder / "set.store"))
    return folder / "split.json"


def _read_split(path: Path) -> None:
    for indices in read_split(path, Store.open(path.parent / "set.store")).values():
        assert ((indices >= 0) & (indices < 6)).all()


def _make_indices(folder: Path) -> Path:
    np.save(folder / "indices.npy", np.arange(9))
    return folder / "indices.npy"


def _make_parts(folder: Path) -> Path:
    np.savez(folder / "splits.npz", idx_train=np.arange(4), idx_val=np.array([4]), idx_test=np.array([5]))
    return folder / "splits.npz"


# Runs


def _make_journal(folder: Path) -> Path:
    path = folder / "labels.journal"
    path.unlink(missing_ok=True)
    water = UnlabelledStructure(np.array([8, 1, 1]), np.eye(3), np.zeros((3, 3)), np.zeros(3, bool))
    with Journal(path, SETTINGS) as journal:
        ledger = Ledger(journal)
        ledger.add_labels((0, 0), "a.xyz", water, Labels(-1.5, np.ones((3, 3)), np.eye(3)))
        ledger.add_failure(Failure((0, 1), "a.xyz", "no convergence"))
        ledger.add_sampled(1, "CCO", Sampled([water, water], "fewer"))
    return path


def _read_journal(path: Path) -> None:
    with Journal(path, SETTINGS) as journal:
        ledger = Ledger(journal)
        for _, geometry, labels in ledger.labelled():
            assert labels.forces.shape == geometry.positions.shape
        for source in (0, 1):
            if ledger.num_sampled(source):
                ledger.sampled(source)


def _unpack_journal(data: bytes) -> object:
    heads, offset = [], len(MAGIC)
    while offset < len(data):
        _, first, second, _ = PREFIX.unpack(data[offset : offset + PREFIX.size])
        start = offset + PREFIX.size
        heads.append([json.loads(data[start : start + first]), data[start + first : start + first + second].hex()])
        offset = start + first + second
    return heads


def _pack_journal(value: object, data: bytes) -> bytes:
    """Records with checksums that are right."""
    records = [
        one if isinstance(one, list) and len(one) == 2 else [one, ""]
        for one in (value if isinstance(value, list) else [])
    ]
    made = MAGIC
    for head, body in records:
        try:
            raw = bytes.fromhex(body)
        except (TypeError, ValueError):
            raw = b""
        made += _record(json.dumps(head).encode(), raw)
    assert zlib.crc32(made) >= 0
    return made


def _make_state(folder: Path) -> Path:
    info = {
        "config": {"model": {"num_channels": 4}},
        "digest": "a",
        "train": "b",
        "epoch": 1,
        "done": 2,
        "global_step": 3,
        "best": None,
        "best_epoch": 0,
        "waited": 0,
        "schedule": {"factor": 1.0, "best": 0.5, "waited": 0},
        "means": {name: [0.0, 1.0, 2.0] for name in TERMS},
        "remembered": {"loss": 0.5},
        "capacities": [{"train": 100}],
        "ranks": 1,
    }
    write_state(folder / "state.safetensors", {"potential.a": torch.ones(3), "optimizer.first": torch.zeros(3)}, info)
    return folder / "state.safetensors"


def _make_settings(folder: Path) -> Path:
    from torchmdx.dynamics.run.files import RunFiles

    files = RunFiles(str(folder / "run"), engine="openmm")
    files.write_settings({"seed": 1, "formula": "H2O", "charge in e": 0.0})
    return files.settings


def _read_settings(path: Path) -> None:
    from torchmdx.dynamics.run.files import RunFiles

    assert isinstance(RunFiles(str(path.with_suffix("")), engine="openmm").read_settings(), dict)


def _context():
    import openmm

    system = openmm.System()
    for _ in range(3):
        system.addParticle(1.0)
    platform = openmm.Platform.getPlatformByName("Reference")
    context = openmm.Context(system, openmm.LangevinMiddleIntegrator(300, 1, 0.001), platform)
    context.setPositions(np.eye(3))
    context.setVelocitiesToTemperature(300, 1)
    return context


def _make_checkpoint(ending: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        from torchmdx.commands.md_openmm.checkpoint import Checkpoint, write_checkpoint
        from torchmdx.dynamics.run.files import RunFiles

        context = _context()
        state = context.getState(positions=True, velocities=True, parameters=True, integratorParameters=True)
        files = RunFiles(str(folder / "run"), engine="openmm")
        write_checkpoint(files, Checkpoint(0, context.createCheckpoint(), state))
        return folder / f"run{ending}"

    return make


def _read_checkpoint(path: Path) -> None:
    from torchmdx.commands.md_openmm.checkpoint import read_checkpoint, restore
    from torchmdx.dynamics.run.files import RunFiles
    from torchmdx.runtime.damaged_file import naming

    exact, portable = read_checkpoint(RunFiles(str(path.with_suffix("")), engine="openmm"))
    context = _context()
    with naming(path):
        restore(context, None if path.suffix == ".xml" else exact, portable)
    assert np.isfinite(context.getState(positions=True).getPositions(asNumpy=True)._value).all()


def _plain_json(data: bytes) -> object:
    return json.loads(data)


def _to_json(value: object, data: bytes) -> bytes:
    return json.dumps(value).encode()


SAFETENSORS = dict(unpack=_unpack_safetensors, pack=_pack_safetensors)
JSON = dict(unpack=_plain_json, pack=_to_json)
ALL = [
    Format(name="own", make=_make_own, read=_read_potential, **SAFETENSORS),
    Format(name="ensemble", make=_make_ensemble, read=_read_potential, **SAFETENSORS),
    *(
        Format(
            name=name, make=_make_ckpt(name), read=_read_potential, unpack=_unpack_ckpt, pack=_pack_ckpt, is_zip=True
        )
        for name in ("tensornet-0layer", "tensornet-zbl", "tensornet2-cut")
    ),
    Format(name="zip", make=_make_zip, read=_read_potential, is_zip=True),
    Format(name="npz", make=_make_npz, read=lambda path: _check_blocks(npz_files.read(path, Keys())), is_zip=True),
    Format(
        name="npy-folder",
        make=_make_folder,
        read=lambda path: _check_blocks(torchmdnet_files.read(path.parent, Keys())),
        root=lambda path: path.parent,
    ),
    Format(
        name="hdf5",
        make=_make_hdf5,
        read=lambda path: _check_blocks(hdf5_files.read_torchmdnet(path, Keys())),
        unpack=_unpack_hdf5,
        pack=_pack_hdf5,
    ),
    Format(name="xyz", make=_make_xyz, read=lambda path: _check_blocks(ase_files.read(path, Keys()))),
    *(
        Format(name=name, make=_make_store(name), read=_read_store, root=lambda path: path.parent)
        for name in ("counts.bin", "pbc.bin", "atomic_numbers.bin", "positions.bin", "origin_file.bin")
    ),
    Format(name="store", make=_make_store("store.json"), read=_read_store, root=lambda path: path.parent, **JSON),
    Format(name="split", make=_make_split, read=_read_split, **JSON),
    Format(name="indices", make=_make_indices, read=read_indices),
    Format(name="splits", make=_make_parts, read=read_parts, is_zip=True),
    Format(name="journal", make=_make_journal, read=_read_journal, unpack=_unpack_journal, pack=_pack_journal),
    Format(name="state", make=_make_state, read=read_state, **SAFETENSORS),
    Format(name="md-settings", make=_make_settings, read=_read_settings, **JSON),
    Format(name="md-exact", make=_make_checkpoint(".chk"), read=_read_checkpoint),
    Format(name="md-portable", make=_make_checkpoint(".xml"), read=_read_checkpoint),
]
FORMATS = {kind.name: kind for kind in ALL}
