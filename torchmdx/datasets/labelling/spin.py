"""Charge and multiplicity of calculators that count electrons."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torchmdx.datasets.labelling.geometry import UnlabelledStructure

LANTHANIDES = range(57, 72)  # their f electrons belong to the core of GFN-xTB, which gives each 3 valence electrons


def xtb_multiplicity(structure: UnlabelledStructure) -> int:
    """The given multiplicity, else the lowest, for xTB. Raises ValueError if the electrons do not allow it."""
    numbers = structure.numbers
    return lowest_or_given(structure, int(np.where(np.isin(numbers, LANTHANIDES), 3, numbers).sum()), "xTB")


def lowest_or_given(structure: UnlabelledStructure, protons: int, method: str) -> int:
    """The multiplicity of a structure whose nuclei, less core electrons, have this charge.

    Raises:
        ValueError: If the total charge is not an integer, or the multiplicity does not fit the electrons.
    """
    charge = structure.charge
    if not float(charge).is_integer():
        raise ValueError(f"the charge must be an integer for {method}, got {charge:g}")
    odd = (protons - int(charge)) % 2
    given = structure.multiplicity
    if given is None:
        return 1 + odd
    if given < 1 or (given - 1) % 2 != odd:
        parity, allowed = ("odd", "2, 4, ...") if odd else ("even", "1, 3, ...")
        raise ValueError(
            f"the multiplicity must be {allowed} with an {parity} number of electrons (charge {charge:g}), got {given}"
        )
    return given
