"""Anything that ASE reads: extended XYZ, trajectories, databases, outputs of electronic-structure programs."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from torchmdx.datasets.blocks import Blocks, FrameBlock, Keys, Remark, Stated, Unreadable, block, tensor
from torchmdx.datasets.label_names import NoLabels, no_labels, unread
from torchmdx.datasets.lmdb_files import ASELMDB, rows_of_lmdb
from torchmdx.datasets.stated_units import STATED, stated_units
from torchmdx.runtime.wording import counted
from torchmdx.structures.files import own_frames
from torchmdx.structures.total_charge import charge_of, stated_charge

XYZ = (".xyz", ".extxyz")
CHARGES = ("charge", "total_charge")
LABELS = {"energy": ("energy",), "forces": ("forces",), "stress": ("stress",), "charge": CHARGES, "virial": ()}
LABELS |= {"charges": ("charges",), "dipole": ("dipole",)}
SHAPES = {"charges": lambda atoms: ((atoms,), (atoms, 1)), "dipole": lambda atoms: ((3,),)}
# What ASE adds to frames by itself.
NO_VALUES = {"unique_id", "tags", "initial_magmoms", "initial_charges", "momenta", "masses", "spacegroup", "unit_cell"}
NO_VALUES |= {"spacegroup_kinds", "occupancy", "castep_custom_species", "move_mask", "ncfile"}
NO_VALUES |= {"config_type", "config_weight", STATED}
# The energy whose derivative the forces are, in ASE. With smearing of occupations, as in VASP, `energy` is another one:
# extrapolated to zero width.
FREE = "free_energy"
SAME_ENERGY = 1e-9  # eV, or the unit of the file


def read(path: Path, keys: Keys) -> Blocks:
    """Frames one after the other; labels of ASE's calculator results, or under the keys in info, arrays or columns.

    Raises:
        ValueError: For a file that cannot be read at all, without any frame that has a named key, or without any label
            that is read although its frames have other values.
    """
    seen = Seen(repr(str(path)), keys)
    seen.require_names()
    for number, found in enumerate(_structures(path)):
        yield seen.take(number, found)
    yield from seen.stated()
    yield from seen.remarks()


class Seen:
    """What the frames of a file have, which can be put together from parts of the file."""

    def __init__(self, where: str, keys: Keys) -> None:
        self.where, self.keys, self.missing = where, keys, keys.named()
        self.names: set[str] = set()
        self.used: dict[str, str] = {}
        self.energies = _Energies()
        self.units: dict[str, str] = {}
        self.count = 0

    def require_names(self) -> None:
        """Raises ValueError for a key of a quantity that ASE does not read."""
        for name, key in self.missing.items():
            if name not in LABELS:
                raise ValueError(f"{self.where} is read by ASE, which needs no {name} key, got {key!r}")

    def take(self, number: int, found: Any) -> FrameBlock | Unreadable:
        """The block of a frame, Atoms, or of the reason why it cannot be read."""
        self.count += 1
        if isinstance(found, str):
            return Unreadable(number, 1, found)
        have = _values(found)
        self.names |= {name for name, value in have.items() if value is not None}
        self.units = stated_units(have) | self.units
        names = _names(have, self.keys, len(found))
        self.used |= names
        self.energies.add(have, names)
        self.missing = {name: key for name, key in self.missing.items() if key not in have}
        try:
            return _block(number, found, have, self.keys)
        except (ValueError, TypeError) as error:
            return Unreadable(number, 1, str(error))

    def merge(self, other: Seen) -> None:
        """Adds what later frames of the file have."""
        self.names |= other.names
        self.used |= other.used
        self.energies.merge(other.energies)
        self.units = other.units | self.units
        self.missing = {name: key for name, key in self.missing.items() if name in other.missing}
        self.count += other.count

    def stated(self) -> Iterator[Stated]:
        """Units that the file states."""
        if self.units:
            yield Stated(self.units)

    def remarks(self) -> Iterator[Remark]:
        """Warnings about the whole file. Raises ValueError for one without frames, named keys or labels."""
        if not self.count:
            raise ValueError(f"{self.where} has no frames")
        for name, key in self.missing.items():
            there = ", ".join(sorted(self.names)) or "nothing"
            raise ValueError(f"the {name} key must be in frames of {self.where}, got {key!r}; there is {there}")
        others = self.names - set(CHARGES) - NO_VALUES
        if others and not self.used.keys() - {"charge"}:
            raise NoLabels(no_labels(self.where, ("energy", "forces", "stress"), others))
        said = unread(self.where, self.keys, others - {"energy"}, self.used)
        for text in (*self.energies.remarks(self.where), *said):
            yield Remark(text)


def _structures(path: Path) -> Iterator[Any]:
    """Atoms, or the reason why they cannot be read, after which the rest of the file may be lost."""
    suffix = path.suffix.lower()
    if suffix in XYZ:
        with path.open(encoding="utf-8", errors="replace") as lines:
            yield from structures_of(lines, str(path))
        return
    source = _database(path) if suffix == ".db" else rows_of_lmdb(path) if suffix == ASELMDB else _any(path)
    number = 0
    while True:
        try:
            atoms = next(source)
        except StopIteration:
            return
        except Exception as error:  # ASE's readers raise errors of any kind
            if number == 0:
                raise ValueError(f"{str(path)!r}: {_refusal(error)}") from error
            yield f"{_refusal(error)}; the rest is not read"
            return
        number += 1
        yield atoms


def _any(path: Path) -> Iterator[Any]:
    import ase.io

    own = own_frames(path)
    yield from ase.io.iread(str(path), index=":") if own is None else own


def _database(path: Path) -> Iterator[Any]:
    import ase.db

    with ase.db.connect(str(path)) as rows:
        for row in rows.select():
            yield row.toatoms(add_additional_information=True)


def structures_of(lines: TextIO, where: str, first: int = 0) -> Iterator[Any]:
    """Reads frame by frame, so that a broken frame does not affect others and nothing is read twice.

    Args:
        first: Number of the first frame.

    Raises:
        ValueError: If the first frame of a file does not begin as one.
    """
    import ase.io

    for number, line in enumerate(iter(lines.readline, ""), first):
        if not line.strip():
            if lines.read(1024).strip():
                yield "a blank line where the number of atoms should be; the rest is not read"
            return
        try:
            count = int(line)
            if count < 0:
                raise ValueError
        except ValueError:
            what = f"the number of atoms must be a whole number, got {line.strip()[:40]!r}; the rest is not read"
            if number == 0:
                raise ValueError(f"{where!r} is not an XYZ file: {what}") from None
            yield what
            return
        body = list(islice(iter(lines.readline, ""), count + 1))
        if len(body) <= count:
            yield f"the file ends after {max(len(body) - 1, 0)} of its {count} atoms"
            return
        try:
            yield ase.io.read(io.StringIO(line + "".join(body)), format="extxyz")
        except Exception as error:  # as above
            yield _refusal(error)


def _refusal(error: Exception) -> str:
    return f"ASE can't read it: {type(error).__name__}: {error}"


def _values(atoms: Any) -> dict[str, Any]:
    """All places of a frame that may hold a label, by name; results of the calculator come first."""
    have = {name: value for name, value in atoms.arrays.items() if name not in ("numbers", "positions")}
    info = dict(atoms.info)
    for name in ("data", "key_value_pairs"):  # of a row of a database
        extra = info.pop(name, None)
        have |= extra if isinstance(extra, dict) else {}
    return have | info | dict(getattr(atoms.calc, "results", None) or {})


def _names(have: dict[str, Any], keys: Keys, num_atoms: int) -> dict[str, str]:
    """The names in this frame of the quantities that it has."""
    names = {}
    for quantity, usual in LABELS.items():
        named = getattr(keys, quantity)
        found = [key for key in ((named,) if named else usual) if have.get(key) is not None]
        # Programs write other things under these names too.
        if found and (named or quantity not in SHAPES or np.shape(have[found[0]]) in SHAPES[quantity](num_atoms)):
            names[quantity] = found[0]
    if keys.energy is None and "forces" in names and _is_number(have.get(FREE)):
        names["energy"] = FREE
    return names


def _is_number(value: Any) -> bool:
    return value is not None and np.size(value) == 1 and np.issubdtype(np.asarray(value).dtype, np.number)


@dataclass
class _Energies:
    """Which energies of a file were read: of how many frames, and how far the two energies of a frame are apart."""

    num_free: int = 0
    num_others: int = 0
    most: float = 0.0

    def add(self, have: dict[str, Any], names: dict[str, str]) -> None:
        if names.get("energy") == FREE:
            self.num_free += 1
            if _is_number(have.get("energy")):
                self.most = max(self.most, abs(float(np.squeeze(have[FREE])) - float(np.squeeze(have["energy"]))))
        elif "energy" in names:
            self.num_others += 1

    def merge(self, other: _Energies) -> None:
        self.num_free += other.num_free
        self.num_others += other.num_others
        self.most = max(self.most, other.most)

    def remarks(self, where: str) -> list[str]:
        """A warning if the energies differ, or if only some frames have the one that belongs to the forces."""
        said = []
        if self.num_free and self.most > SAME_ENERGY:
            said.append(
                f"the energy of {where} is read from {FREE}, whose derivative the forces are; energy differs from it "
                f"by up to {self.most:.3g} (in the unit of the file), and --energy-key energy (data.energy_key in the "
                "configuration of a training) reads that instead"
            )
        if self.num_free and self.num_others:
            said.append(
                f"{counted(self.num_others, 'frame')} of {where} with an energy have no forces or no {FREE}, and "
                f"{counted(self.num_free, 'frame')} have both: the two energies may differ"
            )
        return said


def _block(number: int, atoms: Any, have: dict[str, Any], keys: Keys) -> FrameBlock:
    values = {quantity: have[name] for quantity, name in _names(have, keys, len(atoms)).items()}
    if keys.charge is None and all(have.get(key) is not None for key in CHARGES):
        stated_charge(have)  # raises if they differ
    periodic = bool(atoms.pbc.any())
    stress = values.get("stress")
    if "virial" in values:
        # The virial is -∂E/∂strain: energy, not yet divided by the volume.
        volume = abs(float(np.linalg.det(atoms.cell.array)))
        if volume == 0:
            raise ValueError("a virial needs a cell with a volume, got none")
        stress = -tensor(values["virial"]) / volume
    return block(
        number,
        atoms.positions[None],
        atoms.numbers,
        cell=atoms.cell.array if periodic else None,
        pbc=atoms.pbc,
        charge=values["charge"] if "charge" in values else _charge(atoms),
        energy=None if "energy" not in values else np.asarray(values["energy"]).reshape(1),
        forces=None if "forces" not in values else np.asarray(values["forces"])[None],
        stress=None if stress is None else tensor(stress)[None],
        charges=None if "charges" not in values else np.asarray(values["charges"])[None],
        dipole=None if "dipole" not in values else np.asarray(values["dipole"])[None],
        weight=_plain(have.get("config_weight"), 1.0),
        config_type=str(_plain(have.get("config_type"), "")),
    )


def _charge(atoms: Any) -> float:
    """The sum of formal or initial charges, else 0; initial charges that are no integer in total are partial ones."""
    try:
        return charge_of(atoms)[0]
    except ValueError:
        return 0.0


def _plain(value: Any, default: Any) -> Any:
    return default if value is None else value
