"""Ramachandran plot: density of φ and ψ, and the trajectory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from torchmdx.report.style import FAINT, INK, legend, picture, tidy

Floats = NDArray[np.float64]

WIDTH, BINS = 8.0, 120  # of the density: Gaussian width in degrees, bins per axis
# GFN2-xTB minima in vacuum, (φ, ψ) in degrees, with their names in the literature (tblite, forces below 1 meV/Å).
MINIMA = {"C7eq": (-82, 74), "C5": (-142, 163), "C7ax": (72, -62)}
MOST_POINTS = 1500  # of the path, which stays legible


def draw_ramachandran(file: Path, phi: Floats, psi: Floats, length: float, title: str) -> None:
    """Writes a PNG. phi, psi [F] in degrees, evenly spaced over a length in ps."""
    from matplotlib.patheffects import Normal, Stroke

    levels = np.linspace(0.0, 1.0, 11)[1:]
    found = density(phi, psi, WIDTH, BINS).T
    centres = (np.arange(BINS) + 0.5) * 360 / BINS - 180
    stride = -(-len(phi) // MOST_POINTS)
    halo = [Stroke(linewidth=2.5, foreground="white"), Normal()]
    times = np.linspace(0.0, length, len(phi))[::stride]
    with picture(file, 6.2, 5.2) as figure:
        panel = figure.subplots()
        panel.contourf(centres, centres, found / found.max(), levels, cmap="Blues")
        panel.plot(*path(phi[::stride], psi[::stride]), color=FAINT, linewidth=0.4, alpha=0.6)
        points = panel.scatter(phi[::stride], psi[::stride], c=times, s=3, cmap="plasma", linewidths=0)
        panel.plot(phi[0], psi[0], "o", color="white", markeredgecolor=INK, markersize=8, label="start")
        panel.plot(phi[-1], psi[-1], "s", color=INK, markeredgecolor="white", markersize=8, label="end")
        for name, place in MINIMA.items():
            panel.annotate(
                name, place, color=INK, fontsize=9, ha="center", va="center", weight="bold", path_effects=halo
            )
        tidy(panel, title, "φ / °", "ψ / °")
        panel.set(xlim=(-180, 180), ylim=(-180, 180), aspect="equal")
        panel.set_xticks(range(-180, 181, 60))
        panel.set_yticks(range(-180, 181, 60))
        figure.colorbar(points, ax=panel, label="time / ps", shrink=0.8)
        legend(panel, loc="lower right")


# Atoms of φ and ψ in ACE-ALA-NME: residue and atom names of PDB files.
PHI = (("ACE", "C"), ("ALA", "N"), ("ALA", "CA"), ("ALA", "C"))
PSI = (("ALA", "N"), ("ALA", "CA"), ("ALA", "C"), ("NME", "N"))


def density(x: Floats, y: Floats, width: float, bins: int) -> Floats:
    """Density [bins,bins] of pairs of angles, per square degree, rows by x: Gaussians on a torus, width in degrees.

    Its sum over all bins, times their area, is 1.
    """
    counts, _, _ = np.histogram2d(x, y, bins=bins, range=[[-180, 180], [-180, 180]])
    # Fourier coefficients of a Gaussian on a circle: exp(-k² width² / 2), k integer.
    wave = np.fft.fftfreq(bins, d=1 / bins) * np.radians(width)
    fall = np.exp(-(wave**2) / 2)
    smooth = np.fft.ifft2(np.fft.fft2(counts) * fall[:, None] * fall[None]).real
    return np.maximum(smooth, 0.0) / (counts.sum() * (360 / bins) ** 2)


def path(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """The same points with a gap (NaN) where an angle crosses ±180°, so that the line is not drawn across the plot."""
    jumps = np.flatnonzero((np.abs(np.diff(x)) > 180) | (np.abs(np.diff(y)) > 180)) + 1
    return np.insert(x, jumps, np.nan), np.insert(y, jumps, np.nan)
