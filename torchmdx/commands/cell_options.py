"""Options on how a cell may move, and ASE's filter of cells with these limits."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from torchmdx.structures.pressure_units import pressure_of

if TYPE_CHECKING:
    from ase import Atoms

    from torchmdx.dynamics.relaxation.cell_space import CellSpace

LIMITS = ("pressure", "cell_mask", "hydrostatic", "constant_volume", "fixed_vectors")


def add_cell_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--cell",
        action="store_true",
        help="also relax the cell; a lattice vector along a direction that is not periodic stays as it is",
    )
    group.add_argument(
        "--pressure",
        type=pressure_of,
        metavar="P",
        help="with --cell: external pressure, positive under compression, in GPa or with a unit, such as 500bar "
        "(default: 0)",
    )
    group.add_argument(
        "--cell-mask",
        type=_mask_of,
        metavar="STRAINS",
        help="with --cell: strains that are free, of xx,yy,zz,yz,xz,xy, such as xx,yy,xy (default: all)",
    )
    group.add_argument("--hydrostatic", action="store_true", help="with --cell: scale the cell and keep its shape")
    group.add_argument("--constant-volume", action="store_true", help="with --cell: keep the volume of the cell")
    group.add_argument(
        "--fixed-vectors", metavar="ABC", help="with --cell: lattice vectors that stay as they are, such as c or ab"
    )


def _mask_of(text: str) -> tuple[bool, ...]:
    from torchmdx.dynamics.relaxation.cell_space import VOIGT_NAMES

    names = text.replace(",", " ").split()
    unknown = [name for name in names if name not in VOIGT_NAMES]
    if unknown or not names:
        raise argparse.ArgumentTypeError(f"must be some of {','.join(VOIGT_NAMES)}, got {text!r}")
    return tuple(name in names for name in VOIGT_NAMES)


def require_cell(options: argparse.Namespace) -> None:
    """Raises ValueError for limits of a cell that does not move."""
    for name in LIMITS:
        if getattr(options, name) and not options.cell:
            raise ValueError(f"--{name.replace('_', '-')} needs --cell")


def space_of(options: argparse.Namespace) -> CellSpace:
    from torchmdx.dynamics.relaxation.cell_space import CellSpace

    return CellSpace(
        mask=options.cell_mask,
        hydrostatic=options.hydrostatic,
        constant_volume=options.constant_volume,
        fixed_vectors=options.fixed_vectors or "",
    )


def cell_filter(atoms: Atoms, pressure: float, space: CellSpace) -> Any:
    """ASE's FrechetCellFilter, whose cell moves in a space of strains. pressure: eV/Å³."""
    import numpy as np
    from ase.filters import FrechetCellFilter

    projector = space.projector(atoms.cell.array, atoms.pbc)

    class LimitedCellFilter(FrechetCellFilter):
        def get_forces(self, **kwargs: Any) -> Any:
            forces = super().get_forces(**kwargs)
            forces[-3:] = (projector @ np.ravel(forces[-3:])).reshape(3, 3)
            return forces

    return LimitedCellFilter(atoms, scalar_pressure=pressure)


def restore_fixed_vectors(atoms: Atoms, before: Any, space: CellSpace) -> None:
    """Sets lattice vectors that stay as they are to what they were, without rounding."""
    import numpy as np

    atoms.set_cell(np.where(space.fixed(atoms.pbc)[:, None], before, atoms.cell.array), scale_atoms=False)
