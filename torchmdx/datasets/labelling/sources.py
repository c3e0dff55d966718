"""Sources of structures: files of any format that ASE reads, and SMILES."""

from __future__ import annotations

import glob
import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchmdx.datasets.labelling.geometry import UnlabelledStructure
from torchmdx.structures.files import own_frames
from torchmdx.structures.files.on_demand import CutShort
from torchmdx.structures.files.read import frames_on_demand

if TYPE_CHECKING:
    from ase import Atoms

SMILES_SUFFIX = ".smi"


@dataclass(frozen=True)
class StructureFiles:
    """Frames of files. index: which frames, as in ASE; charge (e) and multiplicity override those in files."""

    paths: tuple[Path, ...]
    index: str = ":"
    charge: float | None = None
    multiplicity: int | None = None

    def frames(self, source: int) -> Iterator[tuple[int, str, UnlabelledStructure]]:
        """Number, origin ("file:number") and structure of every frame of a file. Raises ValueError that names both."""
        path = self.paths[source]
        for number, atoms in read(path, self.index):
            try:
                geometry = UnlabelledStructure.from_ase(atoms, self.charge, self.multiplicity)
            except (ValueError, TypeError) as error:
                raise ValueError(f"frame {number} of {str(path)!r}: {error}") from error
            yield number, f"{path}:{number}", geometry

    def survey(self, told: Callable[[int], None] = lambda count: None) -> tuple[list[int], str]:
        """Number of frames of each file, and a digest of all structures. told: called with the number read so far."""
        counts: list[int] = []
        digest = hashlib.sha256()
        for source in range(len(self.paths)):
            count = 0
            for _, _, geometry in self.frames(source):
                digest.update(geometry.content())
                count += 1
                told(sum(counts) + count)
            if not count:
                raise ValueError(f"{str(self.paths[source])!r} has no structure at index {self.index!r}")
            counts.append(count)
        return counts, digest.hexdigest()


def find_files(patterns: Sequence[str]) -> list[Path]:
    """Files by name or by pattern (`runs/*.xyz`, `**/*.traj`). Raises FileNotFoundError if none matches."""
    found: list[Path] = []
    for pattern in patterns:
        if Path(pattern).is_file():
            found.append(Path(pattern))
            continue
        names = [Path(name) for name in sorted(glob.glob(pattern, recursive=True))]
        files = [path for path in names if path.is_file()]
        if not files:
            raise FileNotFoundError(f"no structure file at {pattern!r}")
        found += files
    doubled = sorted({str(path) for path in found if found.count(path) > 1})
    if doubled:
        raise ValueError(f"each file must be given once, got {', '.join(doubled)} again")
    return found


def read(path: Path, index: str = ":") -> Iterator[tuple[int, Atoms]]:
    """Number and structure of frames of a file, one by one where the format allows it.

    Raises ValueError that names file and frame.
    """
    from ase.utils import string2index

    try:
        wanted = string2index(index)
    except ValueError:
        wanted = index
    if isinstance(wanted, str):
        raise ValueError(f"--index must be a number or a slice such as ::10, got {index!r}")
    frames = enumerate(_all_frames(path))
    if not isinstance(wanted, slice):
        wanted = slice(wanted, wanted + 1 or None)
    if any(end is not None and end < 0 for end in (wanted.start, wanted.stop, wanted.step)):
        yield from list(frames)[wanted]  # indices from the end need the whole file
    else:
        yield from itertools.islice(frames, wanted.start, wanted.stop, wanted.step)


def _all_frames(path: Path) -> Iterator[Atoms]:
    import ase.io

    own = own_frames(path)
    if own is not None:
        yield from own
        return
    try:
        listed = frames_on_demand(str(path))
    except CutShort:
        raise
    except Exception as error:  # ASE's readers raise errors of any kind
        raise ValueError(f"ASE can't read {str(path)!r}: {type(error).__name__}: {error}") from error
    frames: Any = ase.io.iread(path, index=":") if listed is None else iter(listed)
    number = 0
    while True:
        try:
            atoms = next(frames)
        except StopIteration:
            return
        except Exception as error:  # as above
            raise ValueError(
                f"ASE can't read {str(path)!r}, frame {number}: {type(error).__name__}: {error}"
            ) from error
        number += 1
        yield atoms


def read_smiles(path: Path) -> list[str]:
    """First word of each line of a .smi file; empty lines and those that begin with # are skipped."""
    lines = [line.split() for line in path.read_text().splitlines()]
    found = [words[0] for words in lines if words and not words[0].startswith("#")]
    if not found:
        raise ValueError(f"{str(path)!r} must hold a SMILES on each line, got none")
    return found
