"""Formats of files of labelled structures, and their readers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from torchmdx.datasets import (
    FORMAT_NAMES,
    ase_files,
    deepmd_files,
    hdf5_files,
    npz_files,
    torchmdnet_files,
)
from torchmdx.datasets.blocks import Blocks, FrameBlock, Keys
from torchmdx.datasets.lmdb_files import ASELMDB
from torchmdx.datasets.store import Store
from torchmdx.datasets.store_arrays import LABELS

CHUNK = 4096  # frames of a store that are read together
HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"


@dataclass(frozen=True)
class FileFormat:
    """A format of files: its reader, and the units of files that declare none."""

    read: Callable[[Path, Keys], Blocks]
    energy_unit: str = "eV"
    length_unit: str = "angstrom"


def read_store(path: Path, keys: Keys) -> Blocks:
    """All frames of a store, in blocks of frames with the same labels. Keys apply to the other files."""
    store = Store.open(path)
    for start in range(0, len(store), CHUNK):
        frames = store.gather(np.arange(start, min(start + CHUNK, len(store))))
        there = np.stack([frames.has(label) for label in LABELS], axis=1)
        ends = [*(np.flatnonzero((there[1:] != there[:-1]).any(1)) + 1).tolist(), len(frames)]
        for first, end in zip([0, *ends[:-1]], ends, strict=True):
            claimed = frozenset(label for label, found in zip(LABELS, there[first], strict=True) if found)
            yield FrameBlock(start + first, frames.take(np.arange(first, end)), claimed)


_IN_ORDER = (
    FileFormat(ase_files.read),
    FileFormat(npz_files.read),
    FileFormat(hdf5_files.read_spice, "hartree", "bohr"),
    FileFormat(hdf5_files.read_torchmdnet),
    FileFormat(torchmdnet_files.read),
    FileFormat(deepmd_files.read),
)
FORMATS: dict[str, FileFormat] = dict(zip(FORMAT_NAMES, _IN_ORDER, strict=True))
# Stores are recognized, whatever format is given for the other files.
READERS = FORMATS | {"store": FileFormat(read_store)}


def format_of(path: Path) -> str:
    """The format of a file, from its suffix and its content. Raises FileNotFoundError and ValueError."""
    if not path.exists():
        raise FileNotFoundError(f"no data at {str(path)!r}")
    if path.is_dir():
        if Store.is_store(path):
            return "store"
        return _of_folder(path)
    reason = refusal(path)
    if reason is not None:
        raise ValueError(reason)
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return "npz"
    if suffix == ".npy":
        raise ValueError(f".npy files are read by their folder, got {str(path)!r}")
    with path.open("rb") as file:
        magic = file.read(len(HDF5_MAGIC))
    if magic == HDF5_MAGIC or suffix in (".h5", ".hdf5"):
        return hdf5_files.layout(path)
    return "ase"


def _of_folder(path: Path) -> str:
    if next(iter(path.rglob(deepmd_files.TYPES)), None) is not None:
        return "deepmd"
    databases = sorted(path.glob(f"*{ASELMDB}"))
    if databases:
        raise ValueError(f"{str(path)!r} is a folder of databases: give its files, {str(databases[0])!r} and others")
    return "torchmdnet-custom"


def format_named(name: str) -> FileFormat:
    """The format of this name. Raises ValueError that lists the formats."""
    if name not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {name!r}")
    return FORMATS[name]


PICKLES = "holds pickled Python objects, and loading them can run code"
BY_FAIRCHEM = "write extended XYZ or .aselmdb with fairchem's own tools"
REASONS = {
    ".lmdb": f"is an LMDB database of fairchem (OC20, OC22, ODAC), which {PICKLES}; {BY_FAIRCHEM}",
    ".pt": f"is a file of PyTorch (torch_geometric), which {PICKLES}; write .npz or extended XYZ from it",
    ".pth": f"is a file of PyTorch, which {PICKLES}; write .npz or extended XYZ from it",
    ".pkl": f"{PICKLES}; write .npz or extended XYZ from it",
    ".pickle": f"{PICKLES}; write .npz or extended XYZ from it",
    ".parquet": "is a table of Parquet (ColabFit, Hugging Face), which is not read: pip install colabfit-tools, or "
    "pyarrow, and write extended XYZ from it",
    ".tar": "is an archive: unpack it first",
    ".tgz": "is an archive: unpack it first",
    ".zip": "is an archive: unpack it first",
}


def refusal(path: Path) -> str | None:
    """Why a file is not read, by its name and first bytes; None for others."""
    reason = REASONS.get(path.suffix.lower())
    if path.name.lower().endswith((".tar.gz", ".tar.bz2", ".tar.xz")):
        reason = REASONS[".tar"]
    if reason is None and path.suffix.lower() == ".cfg" and path.is_file():
        with path.open("rb") as file:
            if file.read(9) == b"BEGIN_CFG":
                reason = "is a file of MTP (MLIP), which is not read: pip install maml, and write extended XYZ from it"
    return None if reason is None else f"{str(path)!r} {reason}"
