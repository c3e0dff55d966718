"""Molecules with conformers in one small file, and the subset of each. Needs NumPy only."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SALT = "organic-1:"
SHARES = (("val", 0.04), ("test", 0.06))  # of molecules; all others train
RESOLUTION = 1e-3  # Å: starting structures need no more


@dataclass(frozen=True, eq=False)
class Entry:
    """A molecule. numbers [N], bonds [B,2], fixed [B]: bonds that torsions leave alone, conformers [K,N,3] Å."""

    name: str
    group: str
    subset: str
    charge: int
    numbers: np.ndarray
    bonds: np.ndarray
    fixed: np.ndarray
    conformers: np.ndarray


def subset_of(group: str) -> str:
    """By a hash of the name: it depends on no other molecule and on no order."""
    place = int.from_bytes(hashlib.sha256((SALT + group).encode()).digest()[:6], "big") / 2**48
    for name, share in SHARES:
        if place < share:
            return name
        place -= share
    return "train"


def write_entries(path: Path, entries: list[Entry]) -> None:
    """One compressed archive of plain arrays."""
    centred = [(e.conformers - e.conformers.mean(1, keepdims=True)) / RESOLUTION for e in entries]
    texts = {k: np.array("\n".join(getattr(e, k) for e in entries)) for k in ("name", "group", "subset")}
    np.savez_compressed(
        path,
        **texts,
        charge=np.array([e.charge for e in entries], np.int8),
        atoms=np.array([len(e.numbers) for e in entries], np.int16),
        num_bonds=np.array([len(e.bonds) for e in entries], np.int16),
        num_conformers=np.array([len(e.conformers) for e in entries], np.int16),
        numbers=np.concatenate([e.numbers for e in entries]).astype(np.uint8),
        bonds=np.concatenate([e.bonds for e in entries]).astype(np.uint8),
        fixed=np.concatenate([e.fixed for e in entries]),
        conformers=np.concatenate([c.reshape(-1, 3) for c in centred]).round().astype(np.int16),
    )


def read_entries(path: Path) -> list[Entry]:
    """What `write_entries` wrote."""
    with np.load(path, allow_pickle=False) as data:
        texts = {k: str(data[k]).split("\n") for k in ("name", "group", "subset")}
        atoms, bonds, confs = (data[k].astype(int) for k in ("atoms", "num_bonds", "num_conformers"))
        numbers = np.split(data["numbers"], np.cumsum(atoms)[:-1])
        pairs = np.split(data["bonds"].astype(int), np.cumsum(bonds)[:-1])
        fixed = np.split(data["fixed"], np.cumsum(bonds)[:-1])
        places = np.split(data["conformers"] * RESOLUTION, np.cumsum(atoms * confs)[:-1])
        charge = data["charge"]
    return [
        Entry(
            texts["name"][k],
            texts["group"][k],
            texts["subset"][k],
            int(charge[k]),
            numbers[k],
            pairs[k],
            fixed[k],
            places[k].reshape(confs[k], atoms[k], 3),
        )
        for k in range(len(atoms))
    ]
