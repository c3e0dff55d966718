"""Reading structures from files in any format of ASE."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ase import Atoms


def read_structures(path: str, index: str) -> list[Atoms]:
    """The structures of a file in any format of ASE. Raises FileNotFoundError or ValueError that name the file."""
    import ase.io
    from ase.utils import string2index

    if not Path(path).is_file():
        raise FileNotFoundError(f"no structure file at {path!r}")
    try:
        if Path(path).suffix.lower() in (".pdb", ".ent"):
            # ASE returns an additional empty structure for a PDB file with both ENDMDL and END.
            frames: Any = [atoms for atoms in ase.io.read(path, index=":") if len(atoms)]
            found = frames[string2index(index)]
        else:
            found = ase.io.read(path, index=index)
    except Exception as error:  # ASE's readers raise exceptions of many types
        raise ValueError(f"ASE can't read {path!r}: {type(error).__name__}: {error}") from error
    structures = found if isinstance(found, list) else [found]
    if not structures:
        raise ValueError(f"{path!r} has no structure at index {index!r}")
    return structures


def read_structure(path: str, index: str) -> Atoms:
    """The structure at an index. Raises as `read_structures`, and ValueError for several or one without atoms."""
    structures = read_structures(path, index)
    if len(structures) > 1:
        raise ValueError(f"--index must select one structure, got {index!r}, which selects {len(structures)}")
    if not len(structures[0]):
        raise ValueError(f"{path!r} has no atoms at index {index!r}")
    return structures[0]
