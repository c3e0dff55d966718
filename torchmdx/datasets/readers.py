"""Formats of files of labelled structures, and their readers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torchmdx.datasets import (
    FORMAT_NAMES,
    ase_files,
    deepmd_files,
    hdf5_files,
    npz_files,
    store_files,
    torchmdnet_files,
)
from torchmdx.datasets.blocks import Blocks, Keys
from torchmdx.datasets.lmdb_files import ASELMDB
from torchmdx.datasets.other_formats import refusal
from torchmdx.datasets.store import Store

HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"


@dataclass(frozen=True)
class FileFormat:
    """A format of files: its reader, and the units of files that declare none."""

    read: Callable[[Path, Keys], Blocks]
    energy_unit: str = "eV"
    length_unit: str = "angstrom"


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
READERS = FORMATS | {"store": FileFormat(store_files.read)}


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
