"""The space group of a structure, kept by ASE's FixSymmetry during a relaxation."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchmdx.runtime.optional_package import require_package

if TYPE_CHECKING:
    from ase import Atoms

DEFAULT_PRECISION = 0.01  # Å, as in ASE
NO_SYMMETRY = "P1 (1)"


def add_symmetry_options(group: Any) -> None:
    """Adds --fix-symmetry and --symmetry-precision to a group of options."""
    group.add_argument("--fix-symmetry", action="store_true", help="keep the space group of the structure")
    group.add_argument(
        "--symmetry-precision",
        type=float,
        metavar="L",
        help=f"with --fix-symmetry: tolerance in Å for finding the space group (default: {DEFAULT_PRECISION})",
    )


@dataclass(frozen=True)
class FixedSymmetry:
    """The constraint, and the name of the space group that it keeps."""

    constraint: Any
    group: str

    def free(self, atoms: Atoms) -> None:
        """Removes the constraint, which belongs to the relaxation and not to the structure."""
        atoms.set_constraint([each for each in atoms.constraints if each is not self.constraint])


def require_symmetry_support(atoms: Atoms) -> None:
    """Raises ImportError without spglib, ValueError for structures whose symmetry cannot be fixed."""
    require_package("spglib", "--fix-symmetry needs", "symmetry")
    if not atoms.pbc.any() or atoms.cell.rank < 3:
        raise ValueError(
            "--fix-symmetry needs a periodic structure with three lattice vectors, "
            f"got pbc {atoms.pbc.tolist()} and a cell of rank {atoms.cell.rank}"
        )
    if atoms.constraints:
        names = ", ".join(type(each).__name__ for each in atoms.constraints)
        raise ValueError(f"--fix-symmetry needs a structure without other constraints, got {names}")


def fix_symmetry(atoms: Atoms, precision: float) -> FixedSymmetry:
    """Moves atoms and cell to the exact symmetry found within a precision, Å, and adds ASE's constraint."""
    from ase.constraints import FixSymmetry

    group = space_group(atoms, precision)
    if group == NO_SYMMETRY:
        warnings.warn(
            f"--fix-symmetry has no effect: within {precision} Å the structure has no symmetry ({group}); "
            "see --symmetry-precision",
            stacklevel=2,
        )
    constraint = FixSymmetry(atoms, symprec=precision)
    atoms.set_constraint(constraint)
    return FixedSymmetry(constraint, group)


def space_group(atoms: Atoms, precision: float) -> str:
    """International symbol and number of the space group within a precision, Å, such as "Fm-3m (225)"."""
    from ase.spacegroup.symmetrize import check_symmetry

    found = check_symmetry(atoms, symprec=precision)
    if found is None:
        raise ValueError(f"spglib finds no space group within {precision} Å; give another --symmetry-precision")
    # An attribute since spglib 2.5, an item before.
    item = (lambda name: getattr(found, name)) if hasattr(found, "number") else found.__getitem__
    return f"{item('international')} ({item('number')})"
