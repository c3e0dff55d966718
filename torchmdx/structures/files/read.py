"""Reading structures from files: one reader for all commands."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchmdx.structures.files import gro, lammps_data, mmcif, mol2, pdb, sdf
from torchmdx.structures.files.disorder import require_ordered
from torchmdx.structures.files.on_demand import CutShort, TrajectoryFrames, XyzFrames
from torchmdx.structures.total_charge import DEFAULT, charge_of, set_charge

if TYPE_CHECKING:
    from ase import Atoms

# Formats of which ASE reads the first record only, or without the charges and elements that the file has.
OWN: dict[str, Callable[[str], list[Atoms]]] = {
    ".pdb": pdb.frames,
    ".ent": pdb.frames,
    ".sdf": sdf.frames,
    ".sd": sdf.frames,
    ".mol": sdf.frames,
    ".gro": gro.frames,
    ".mol2": mol2.frames,
}
LAMMPS = (".data", ".lmp", ".lammps")
DATA = "lammps-data"  # the format, by ASE's name
DUMPS = (".lammpstrj", ".dump")
HEAD = 10_000  # characters, which hold the columns of a dump
CIF = (".cif", ".mmcif", ".pdbx")


@dataclass(frozen=True, eq=False)
class Record:
    """One structure of a file: its number from 0, the number of structures in the file, and its total charge in e.

    Attributes:
        charge_from: A text on the origin of the charge. Unless it is the default, `atoms.info["charge"]` has it too.
    """

    atoms: Atoms
    number: int
    count: int
    charge: float
    charge_from: str

    @property
    def place(self) -> str:
        """Such as "frame 5 of 6 (index 4)"; empty for the only structure of a file."""
        return f"frame {self.number + 1} of {self.count} (index {self.number})" if self.count > 1 else ""

    @property
    def charge_text(self) -> str:
        """Such as "charge +1 (sum of formal charges)"."""
        return f"charge {self.charge:+g} ({self.charge_from})" if self.charge else f"charge 0 ({self.charge_from})"


def read_records(path: str, index: str, charge: float | None = None, format: str | None = None) -> list[Record]:
    """The structures of a file at an index of ASE, such as "-1", "::10" or ":". charge: instead of the file's, e.

    Raises FileNotFoundError or ValueError that name the file.

    Args:
        format: By ASE's name; None to tell from name and content.
    """
    found, numbers, count = _read(path, index, format)
    records = []
    for number, atoms in zip(numbers, found, strict=True):
        try:
            total, origin = charge_of(atoms, charge)
        except ValueError as error:
            raise ValueError(f"structure {number} of {path!r}: {error}") from error
        if origin != DEFAULT:
            set_charge(atoms, total)
        records.append(Record(atoms, number, count, total, origin))
    return records


def read_record(path: str, index: str, charge: float | None = None, format: str | None = None) -> Record:
    """The structure at an index. Raises as `read_records`, and ValueError for several or one without atoms."""
    records = read_records(path, index, charge, format)
    _require_one([record.atoms for record in records], path, index)
    return records[0]


def read_structures(path: str, index: str) -> list[Atoms]:
    """The structures of a file at an index, as `read_records`, whatever their charges."""
    return _read(path, index)[0]


def read_structure(path: str, index: str) -> Atoms:
    """The structure at an index, as `read_record`, whatever its charge."""
    structures = read_structures(path, index)
    _require_one(structures, path, index)
    return structures[0]


def _require_one(structures: list[Atoms], path: str, index: str) -> None:
    if len(structures) > 1:
        raise ValueError(f"--index must select one structure, got {index!r}, which selects {len(structures)}")
    if not len(structures[0]):
        raise ValueError(f"{path!r} has no atoms at index {index!r}")


def own_frames(path: str | Path) -> list[Atoms] | None:
    """All structures of a PDB, CIF, SDF, MOL, MOL2, GRO or LAMMPS data file; None for other formats.

    Raises ValueError that names the file, also for a LAMMPS dump without elements.
    """
    suffix = Path(path).suffix.lower()
    if suffix in LAMMPS or Path(path).name.startswith("data."):
        return _lammps_frames(path)
    if suffix in DUMPS:
        _require_elements(path)
    if suffix not in OWN and suffix not in CIF:
        return None
    text = Path(path).read_text(encoding="utf-8", errors="replace")
    if suffix in CIF and not mmcif.is_mmcif(text):
        return _crystals(path)
    try:
        return OWN.get(suffix, mmcif.frames)(text)
    except ValueError as error:
        raise ValueError(f"can't read {str(path)!r}: {error}") from error


def _crystals(path: str | Path) -> list[Atoms]:
    """The structures of a CIF file, as ASE reads them, none of them disordered."""
    import ase.io

    try:
        found = list(ase.io.read(path, index=":", format="cif"))
    except Exception as error:  # as in _read
        raise _unreadable(str(path), error) from error
    try:
        for atoms in found:
            require_ordered(atoms)
    except ValueError as error:
        raise ValueError(f"can't read {str(path)!r}: {error}") from error
    return found


def _require_elements(path: str | Path) -> None:
    with Path(path).open(encoding="utf-8", errors="replace") as file:
        head = file.read(HEAD)
    try:
        lammps_data.require_elements(head)
    except ValueError as error:
        raise ValueError(f"can't read {str(path)!r}: {error}") from error


def _lammps_frames(path: str | Path, *, known: bool = False) -> list[Atoms] | None:
    """The structure of a LAMMPS data file; None for another file. known: whether it is one."""
    text = Path(path).read_text(encoding="utf-8", errors="replace")
    if not known and not lammps_data.is_data(text):
        return None
    try:
        return lammps_data.frames(text)
    except Exception as error:  # ASE's reader raises exceptions of many types
        raise ValueError(f"can't read {str(path)!r}: {error}") from error


def _read(path: str, index: str, format: str | None = None) -> tuple[list[Atoms], list[int], int]:
    """Structures at an index, their numbers, and the number of structures in the file."""
    from ase.utils import string2index

    if not Path(path).is_file():
        raise FileNotFoundError(f"no structure file at {path!r}")
    try:
        wanted: Any = string2index(index)
    except ValueError:
        wanted = None
    if not isinstance(wanted, int | slice):
        raise ValueError(f"--index must be a number or a slice such as ::10, got {index!r}")
    frames = own_frames(path) if format is None else _lammps_frames(path, known=True) if format == DATA else None
    every: Sequence[Any] = _with_ase(path, format) if frames is None else frames
    count = len(every)
    if not count:
        raise ValueError(f"{path!r} has no structures")
    try:
        numbers = list(range(count)[wanted]) if isinstance(wanted, slice) else [range(count)[wanted]]
    except IndexError:
        several = f"from {-count} to {count - 1}, for the {count} structures" if count > 1 else "0 or -1, for the one"
        raise ValueError(f"--index must be {several} of {path!r}, got {index}") from None
    if not numbers:
        raise ValueError(f"{path!r} has no structure at index {index!r}; it has {count}")
    try:
        return [every[number] for number in numbers], numbers, count
    except Exception as error:  # ASE's readers raise exceptions of many types
        raise _unreadable(path, error) from error


def _with_ase(path: str, format: str | None) -> Sequence[Any]:
    """The structures of a file in a format of ASE; those of .traj and XYZ files are read when needed."""
    import ase.io
    from ase.io.formats import filetype, ioformats

    if format is not None and (format not in ioformats or not ioformats[format].can_read):
        near = difflib.get_close_matches(format, ioformats, 3) or ["extxyz", "cif", "vasp"]
        raise ValueError(f"--format must be a format that ASE reads, such as {', '.join(near)}, got {format!r}")
    if format == "cif":
        return _crystals(path)
    try:
        frames = frames_on_demand(path) if format is None else None
        if frames is not None:
            return frames
        kind = format or filetype(path)
        found = list(ase.io.read(path, index=":", format=format))
    except CutShort:
        raise
    except Exception as error:  # as above
        raise _unreadable(path, error) from error
    if kind == "lammps-dump-text":
        _require_elements(path)
    return found


def frames_on_demand(path: str) -> Sequence[Any] | None:
    """The frames of a .traj or XYZ file, each read when it is needed; None for other formats.

    Raises CutShort for an XYZ file that ends in a frame: ASE would count the missing lines, one by one.
    """
    from ase.io.formats import filetype

    kind = filetype(path)
    if kind == "traj":
        return TrajectoryFrames(path)
    if kind in ("xyz", "extxyz"):
        try:
            return XyzFrames(path)
        except CutShort:
            raise
        except ValueError:
            return None  # ASE's own error names the line
    return None


def _unreadable(path: str, error: Exception) -> ValueError:
    return ValueError(f"ASE can't read {path!r}: {type(error).__name__}: {error}")
