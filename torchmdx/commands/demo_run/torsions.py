"""The torsion angles of alanine dipeptide, and their density in a trajectory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

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
