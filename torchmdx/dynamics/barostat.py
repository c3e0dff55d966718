"""Constant pressure: the equations of stochastic cell rescaling, and its work on a batch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchmdx.dynamics.particles import Particles
from torchmdx.dynamics.random_numbers import BAROSTAT, normals
from torchmdx.dynamics.restraint_terms import RestraintTerms
from torchmdx.dynamics.restraints import Position
from torchmdx.step.results import StepError
from torchmdx.structures.system import Batch
from torchmdx.structures.units import BAR, BOLTZMANN, PICOSECOND

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

# A step that would change a volume by more than this factor is an error: the timestep or the relaxation is too coarse.
MOST_CHANGE = 2.0


class CellError(StepError):
    """A barostat would change the volume of a cell more than twofold in one step; names structure and volume."""


@dataclass(frozen=True)
class CellRescaling:
    """Constant pressure (NPT): stochastic cell rescaling, isotropic (Bernetti and Bussi, 2020).

    The square root of the volume V has noise that does not depend on V, and is what each step moves::

        √V ← √V - (β √V / (2 τ)) (P₀ - P - k T / (2 V)) h + sqrt(k T β h / (2 τ)) ξ
        P = (2 K - Σ r·dU/dr) / (3 V),  μ = (V_new / V)^(1/3)
        cell ← μ cell,  x ← μ x,  v ← v / μ

    This samples the isothermal-isobaric ensemble of the integrator's temperature: P has the kinetic energy K of the
    step (with Langevin of velocities half a kick later; with Bussi K + 3/2 k T, since the centre of mass has no thermal
    motion), and the virial of potential and restraints. Positions are scaled after the thermostat's move and before the
    evaluation. The volume relaxes within about τ κ / β, κ being the compressibility of the substance; averages depend
    on τ and β only through errors of order h / τ. h: timestep, with multiple time steps the outer one, T: temperature,
    k: the Boltzmann constant, ξ: a standard normal number for each structure and step.

    Attributes:
        pressure: P₀, bar.
        relaxation: τ, ps.
        compressibility: β, 1/bar; of water by default.
    """

    pressure: float = 1.0
    relaxation: float = 1.0
    compressibility: float = 4.6e-5

    def __post_init__(self) -> None:
        if not math.isfinite(self.pressure):  # negative for a stretched liquid
            raise ValueError(f"pressure must be a finite number of bar, got {self.pressure}")
        for name, unit in (("relaxation", "ps"), ("compressibility", "1/bar")):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be > 0 {unit} and finite, got {value}")

    def mobility(self, timestep: float) -> float:
        """β h / (2 τ) in Å³/eV; timestep: h, fs."""
        return self.compressibility / BAR * timestep / (2 * self.relaxation * PICOSECOND)

    def scaling(
        self, timestep: float, volume: Floats, kinetic: Floats, virial: Floats, temperatures: Floats, noise: Floats
    ) -> Floats:
        """μ [S] from volumes Å³, 2 K and virials eV, temperatures K and ξ, all [S]. Raises CellError.

        Args:
            kinetic: 2 K as of `Particles.kinetic_virial`.
        """
        thermal, mobility = BOLTZMANN * temperatures, self.mobility(timestep)
        missing = self.pressure * BAR - (kinetic + virial) / (3 * volume) - thermal / (2 * volume)
        ratio = 1 - mobility * missing + np.sqrt(thermal * mobility / volume) * noise
        self.require_steady(volume, ratio)
        found: Floats = ratio ** (2 / 3)
        return found

    def require_steady(self, volume: Floats, ratio: Floats) -> None:
        """Raises CellError unless the ratios of new to old √V [S] are near 1."""
        good = (ratio > MOST_CHANGE**-0.5) & (ratio < MOST_CHANGE**0.5)
        if not good.all():
            which = int(np.argmin(good))
            raise CellError(
                f"the volume of structure {which}, {volume[which]:.6g} Å³, must change by less than a factor of two "
                "per step; the structure may be unstable, or the barostat needs a longer relaxation "
                "or a smaller compressibility"
            )


def checked_barostat(
    barostat: CellRescaling,
    batch: Batch,
    particles: Particles,
    terms: RestraintTerms,
    constant_energy: bool,
    exchanging: bool,
) -> None:
    """Raises TypeError, and ValueError for what cannot be at constant pressure."""
    if not isinstance(barostat, CellRescaling):
        raise TypeError(f"barostat must be a CellRescaling of torchmdx.dynamics.barostat, got {barostat!r}")
    if constant_energy:
        raise ValueError("a barostat needs an integrator with constant temperature, got one with constant energy")
    if exchanging:
        raise ValueError("an exchange of temperatures needs constant volume, got a barostat")
    open_ones = (~batch.pbc.all(1)).nonzero()
    if len(open_ones):
        number = int(open_ones[0, 0])
        raise ValueError(
            f"a barostat needs cells that are periodic along all directions, got {batch.pbc[number].tolist()} for "
            f"structure {number}"
        )
    if not particles.mobile.all():
        raise ValueError(f"a barostat moves all atoms, got {int((~particles.mobile).sum())} frozen ones")
    if (terms.kind == Position.kind).any():
        raise ValueError("a barostat moves all positions, got restraints on positions")


def barostat_noise(seeds: Integers, step: int) -> Floats:
    """ξ [S] of a step."""
    zeros = np.zeros_like(seeds)
    found: Floats = normals(seeds, zeros, zeros + step, BAROSTAT)[:, 0]
    return found


def volumes(cell: Floats) -> Floats:
    """Of cells [S,3,3], Å³."""
    found: Floats = np.abs(np.linalg.det(cell))
    return found
