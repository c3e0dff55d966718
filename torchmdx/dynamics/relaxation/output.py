"""The files of a relaxation of many structures: extended XYZ that grows by a frame at a time, and can be continued.

Converged structures go to one file and failures to another. A frame is written by one call of the operating system when
its structure has ended, so a killed process loses none of them; a frame that was cut short is removed when the file is
opened again. `sort` puts the frames into the order of the input.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torchmdx.dynamics.relaxation.tasks import Relaxed
from torchmdx.runtime.files import naming_writes, whole_file
from torchmdx.structures.total_charge import charge_of

if TYPE_CHECKING:
    from ase import Atoms

ENDINGS = (".xyz", ".extxyz")


def failures_of(path: Path) -> Path:
    """The file of failures next to an output: relaxed.failed.xyz for relaxed.xyz."""
    return path.with_name(f"{path.stem}.failed{path.suffix}")


def key_of(atoms: Atoms, settings: str) -> str:
    """Identifies a structure and how it is relaxed, so that a continued output holds what was asked."""
    digest = hashlib.sha256(settings.encode())
    constraints = [each.todict() for each in atoms.constraints]
    parts = (atoms.numbers.astype(np.int64), atoms.positions, atoms.cell.array, atoms.pbc.astype(np.int8))
    for part in parts:
        digest.update(np.ascontiguousarray(part).tobytes())
    charge, _ = charge_of(atoms)
    digest.update(f"{charge:g} {constraints}".encode())
    if atoms.has("initial_charges"):
        digest.update(atoms.get_initial_charges().tobytes())
    return digest.hexdigest()[:16]


class RelaxationOutput:
    """Appends frames of ended structures. numbers, keys: of the structures asked for, in their order."""

    def __init__(self, path: Path, numbers: Sequence[int], keys: Sequence[str]) -> None:
        self.path, self.failures = path, failures_of(path)
        self.numbers, self.keys = list(numbers), list(keys)
        self.converged: set[int] = set()
        self.failed: set[int] = set()

    @property
    def done(self) -> set[int]:
        """Positions in `numbers` of the structures that have ended."""
        return self.converged | self.failed

    def start(self) -> None:
        """Empty files. Raises OSError if they cannot be written."""
        for path in (self.path, self.failures):
            with naming_writes(path):
                path.unlink(missing_ok=True)
        with naming_writes(self.path):
            self.path.touch()

    def resume(self) -> None:
        """Reads what is done, and removes a frame that was cut short. Raises ValueError for frames of another run."""
        places = {number: place for place, number in enumerate(self.numbers)}
        for path, done in ((self.path, self.converged), (self.failures, self.failed)):
            if not path.exists():
                continue
            content, end = path.read_bytes(), 0
            for frame in frames_of(content):
                info = _info_of(frame)
                place = places.get(info.get("relax_index", -1))
                if place is None or info.get("relax_key") != self.keys[place]:
                    raise ValueError(
                        f"{str(path)!r} must hold structures of this input, relaxed with these settings and this "
                        f"potential, got another one (relax_index {info.get('relax_index', 'missing')})"
                    )
                done.add(place)
                end += len(frame)
            if end < len(content):
                with naming_writes(path):
                    os.truncate(path, end)

    def add(self, found: Relaxed, place: int) -> None:
        """Appends a frame. Raises OSError that names the file."""
        path, done = (self.path, self.converged) if found.converged else (self.failures, self.failed)
        frame = _frame(found, self.numbers[place], self.keys[place])
        with naming_writes(path), path.open("ab", buffering=0) as file:
            before = file.tell()
            if file.write(frame) != len(frame):  # the disk is full
                os.truncate(path, before)
                raise OSError("it was written in part")
        done.add(place)

    def sort(self) -> None:
        """Puts the frames of both files into the order of the input."""
        for path in (self.path, self.failures):
            if not path.exists():
                continue
            frames = list(frames_of(path.read_bytes()))
            order = {number: place for place, number in enumerate(self.numbers)}
            wanted = sorted(frames, key=lambda frame: order[_info_of(frame)["relax_index"]])
            if wanted != frames:
                with whole_file(path) as file:
                    file.writelines(wanted)


def frames_of(content: bytes) -> Iterator[bytes]:
    """The complete frames of an extended XYZ file."""
    lines = content.splitlines(keepends=True)
    first = 0
    while first < len(lines):
        try:
            last = first + 2 + int(lines[first])
        except ValueError:
            return
        frame = lines[first:last]
        if last > len(lines) or not frame[-1].endswith(b"\n"):
            return
        yield b"".join(frame)
        first = last


def _frame(found: Relaxed, number: int, key: str) -> bytes:
    from ase.io.extxyz import write_extxyz

    atoms = found.atoms.copy()
    atoms.calc = found.atoms.calc
    atoms.info = _in_one_line(atoms.info)
    atoms.info |= {"relax_index": number, "relax_key": key, "relax_steps": found.num_steps}
    if np.isfinite(found.fmax):
        atoms.info["relax_fmax"] = round(found.fmax, 8)
    if found.reason is not None:
        atoms.info["relax_failure"] = " ".join(found.reason.split())
    text = io.StringIO()
    write_extxyz(text, [atoms])
    return text.getvalue().encode()


def _in_one_line(info: dict[str, Any]) -> dict[str, Any]:
    """Without results of an earlier relaxation, and without line breaks, which would end the line of a frame."""
    kept = {name: value for name, value in info.items() if not str(name).startswith("relax_")}
    return {name: " ".join(value.split()) if isinstance(value, str) else value for name, value in kept.items()}


def _info_of(frame: bytes) -> dict[str, Any]:
    from ase.io.extxyz import key_val_str_to_dict

    found: dict[str, Any] = key_val_str_to_dict(frame.split(b"\n", 2)[1].decode())
    return found
