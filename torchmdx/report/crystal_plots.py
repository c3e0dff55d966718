"""Pictures of the properties of a crystal."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from torchmdx.materials.eos import EquationOfState
from torchmdx.materials.phonon_bands import Phonons
from torchmdx.report.style import FAINT, PALETTE, picture, tidy
from torchmdx.structures.units import GPA


def plot_eos(found: EquationOfState, file: Path, title: str) -> None:
    """Writes energies against volume with the fit, as PNG or SVG. Raises ImportError without matplotlib."""
    from ase.eos import birchmurnaghan

    volumes = np.linspace(min(found.volumes), max(found.volumes), 200)
    modulus = found.bulk_modulus * GPA
    fit = birchmurnaghan(volumes, found.energy, modulus, found.derivative, found.volume)
    with picture(file, 5.6, 3.8) as figure:
        panel = figure.subplots()
        panel.plot(volumes, fit - found.energy, color=PALETTE[0], linewidth=1.4)
        panel.plot(found.volumes, np.array(found.energies) - found.energy, "o", color=PALETTE[0], markersize=5)
        text = f"V₀ {found.volume:.3f} Å³, B {found.bulk_modulus:.1f} GPa, B' {found.derivative:.2f}"
        tidy(panel, f"{title}\n{text}", "volume of the cell / Å³", "energy / eV, relative to the minimum")


def plot_phonons(found: Phonons, file: Path, title: str) -> None:
    """Writes bands and density of states, as PNG or SVG. Raises ImportError without matplotlib."""
    with picture(file, 8.0, 4.2) as figure:
        bands, density = figure.subplots(1, 2, sharey=True, width_ratios=[3, 1])
        bands.plot(found.path, found.frequencies, color=PALETTE[0], linewidth=1.1)
        bands.axhline(0, color=FAINT, linewidth=0.8)
        labels: dict[float, str] = {}
        for place, name in found.ticks:
            letter = name.replace("G", "Γ")
            labels[place] = f"{labels[place]}|{letter}" if place in labels else letter
        for place in labels:
            bands.axvline(place, color=FAINT, linewidth=0.8)
        tidy(bands, title, "", "frequency / THz", grid="y")
        bands.set_xticks(list(labels), list(labels.values()))
        bands.set_xlim(found.path[0], found.path[-1])
        density.plot(found.density, found.density_frequencies, color=PALETTE[0], linewidth=1.1)
        density.fill_betweenx(found.density_frequencies, 0, found.density, color=PALETTE[0], alpha=0.2)
        tidy(density, "", "density of states / THz⁻¹", "", grid="y")
        density.set_xlim(left=0)
