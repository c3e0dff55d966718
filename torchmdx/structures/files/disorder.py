"""Sites of a CIF file that are occupied in part, or by several elements."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ase import Atoms

WHOLE = 1e-3
MOST_NAMED = 3


def require_ordered(atoms: Atoms) -> None:
    """Raises ValueError, which names them, for sites with another occupancy than one atom: ASE would choose atoms."""
    occupancies = atoms.info.get("occupancy") or {}
    wrong = [
        f"{' and '.join(f'{share:g} {symbol}' for symbol, share in site.items())} at site {name}"
        for name, site in occupancies.items()
        if len(site) > 1 or any(abs(share - 1) > WHOLE for share in site.values())
    ]
    if wrong:
        more = f" and {len(wrong) - MOST_NAMED} more" if len(wrong) > MOST_NAMED else ""
        raise ValueError(
            f"every site must hold one atom, got {', '.join(wrong[:MOST_NAMED])}{more}: the crystal is disordered; "
            "make an ordered one first, for example with pymatgen's OrderDisorderedStructureTransformation"
        )
