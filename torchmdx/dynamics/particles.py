"""What moves: masses, frozen atoms, degrees of freedom and initial velocities of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from torchmdx.dynamics.random_numbers import VELOCITIES, normals
from torchmdx.dynamics.settings import checked_velocities
from torchmdx.neighbors.search import EdgeSearch
from torchmdx.structures.system import Batch
from torchmdx.structures.units import BOLTZMANN, FORCE_TO_ACCELERATION

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

# Å; longer than any bond of a hydrogen to an atom other than a metal, shorter than any contact.
LONGEST_BOND = 1.75


@dataclass(frozen=True, eq=False)
class Particles:
    """N atoms of S structures, as NumPy arrays, and their degrees of freedom, which everything else asks for here.

    Attributes:
        system ([N]): The structure of each atom.
        place ([N]): Its index in the structure. masses [N] amu.
        mobile ([N]): Which atoms move.
        starts ([S+1]): Structure s has the atoms from starts[s] to starts[s+1].
        held ([S]): Structures whose momentum is constant. Their degrees of freedom are those of the motion relative to
            the centre of mass, three less than those of mobile atoms; they are what thermostats act on and what kinetic
            energies and temperatures are of.
    """

    system: Integers
    place: Integers
    starts: Integers
    masses: Floats
    mobile: NDArray[np.bool_]
    held: NDArray[np.bool_]

    @classmethod
    def of(cls, batch: Batch, masses: Floats, frozen: NDArray[np.bool_], *, momentum_kept: bool) -> Particles:
        """momentum_kept: whether the integrator keeps the momentum of structures without frozen atoms.

        Raises:
            ValueError: For a structure in which nothing moves.
        """
        system = batch.system_index.cpu().numpy()
        counts = batch.counts().cpu().numpy()
        starts = np.concatenate([[0], np.cumsum(counts)])
        mobile = ~frozen
        movable = np.bincount(system, mobile, len(counts)).astype(np.int64)
        if (movable == 0).any():
            which = int(np.argmin(movable))
            raise ValueError(f"at least one atom of every structure must move, got none in structure {which}")
        # A single atom has no other motion than that of its centre of mass.
        held = (movable == counts) & (counts > 1) & momentum_kept
        return cls(system, np.arange(len(system)) - starts[system], starts, masses, mobile, held)

    def tied(self, systems: NDArray[np.bool_]) -> Particles:
        """The same where something outside, such as a restraint on positions, acts on these structures [S]."""
        return replace(self, held=self.held & ~systems)

    @property
    def num_systems(self) -> int:
        return len(self.starts) - 1

    @property
    def counted(self) -> NDArray[np.bool_]:
        """As many atoms [N] as a third of the degrees of freedom: of held structures all but the first."""
        found = self.mobile.copy()
        found[self.starts[:-1][self.held]] = False
        return found

    def degrees_of_freedom(self) -> Integers:
        """Of each structure [S]."""
        return 3 * np.bincount(self.system, self.counted, self.num_systems).astype(np.int64)

    def inverse_masses(self) -> Floats:
        """[N] 1/amu; 0 for frozen atoms."""
        return np.where(self.mobile, 1 / self.masses, 0.0)

    def kicked(self, velocities: Floats, kick: float, forces: Floats) -> Floats:
        """velocities + kick forces / m [N,3] Å/fs; kick as `Motion.half_kick`, forces eV/Å."""
        return velocities + kick * self.inverse_masses()[:, None] * forces if kick else velocities

    def held_inverse_masses(self) -> Floats:
        """[S] 1/amu of held structures; 0 for others."""
        return self.held / np.bincount(self.system, self.masses, self.num_systems)

    def drift(self, velocities: Floats) -> Floats:
        """The velocity of the centre of mass [S,3] Å/fs of held structures; 0 for others, where it is thermal."""
        momentum = [np.bincount(self.system, self.masses * velocities[:, k], self.num_systems) for k in range(3)]
        return self.held_inverse_masses()[:, None] * np.stack(momentum, axis=-1)

    def drift_energy(self, velocities: Floats) -> Floats:
        """The kinetic energy of the drift of each structure [S], eV."""
        masses = np.bincount(self.system, self.masses, self.num_systems)
        return masses * (self.drift(velocities) ** 2).sum(-1) / (2 * FORCE_TO_ACCELERATION)

    def kinetic_energy(self, velocities: Floats) -> Floats:
        """That of the degrees of freedom of each structure [S], eV, so without the drift; velocities [N,3] Å/fs."""
        each = self.masses * (velocities * velocities).sum(-1)
        whole = np.bincount(self.system, each, self.num_systems) / (2 * FORCE_TO_ACCELERATION)
        return whole - self.drift_energy(velocities)

    def rescaled(self, velocities: Floats, factors: Floats) -> Floats:
        """Velocities [N,3] after a thermostat has multiplied those relative to the drift by factors [S]."""
        drift = self.drift(velocities)[self.system]
        return drift + factors[self.system, None] * (velocities - drift)

    def kinetic_virial(self, kinetic: Floats, temperatures: Floats) -> Floats:
        """The kinetic part of 3 P V of each structure [S], eV, of kinetic energies eV and temperatures K.

        2 K, and k T for each direction in which the momentum is constant: positions of N atoms fill the volume, so that
        its distribution is that of N momenta.
        """
        return 2 * kinetic + 3 * BOLTZMANN * temperatures * self.held

    def temperature(self, kinetic: Floats) -> Floats:
        """Of each structure [S], K, from kinetic energies in eV."""
        return 2 * kinetic / (self.degrees_of_freedom() * BOLTZMANN)

    def draw_velocities(self, temperatures: Floats, seeds: Integers) -> Floats:
        """Maxwell-Boltzmann velocities [N,3] Å/fs of the degrees of freedom at temperatures [S] K, without drift."""
        scale = np.sqrt(BOLTZMANN * temperatures[self.system] * FORCE_TO_ACCELERATION * self.inverse_masses())
        steps = np.zeros_like(self.place)
        return self.at_rest(scale[:, None] * normals(seeds[self.system], self.place, steps, VELOCITIES))

    def at_rest(self, velocities: Floats) -> Floats:
        """Velocities [N,3] with frozen atoms at rest and without drift."""
        moving = np.where(self.mobile[:, None], velocities, 0.0)
        return moving - self.drift(moving)[self.system]


def checked_masses(batch: Batch, masses: Any) -> Floats:
    """Masses [N] amu; None takes those of the elements. Raises ValueError for another shape and masses <= 0."""
    if masses is None:
        from ase.data import atomic_masses

        return np.asarray(atomic_masses, dtype=np.float64)[batch.atomic_numbers.cpu().numpy()]
    found = np.array(masses, dtype=np.float64)
    if found.shape != (batch.num_atoms,):
        raise ValueError(f"masses must have shape [{batch.num_atoms}], got {list(found.shape)}")
    bad = np.flatnonzero(~(np.isfinite(found) & (found > 0)))
    if len(bad):
        raise ValueError(f"masses must be > 0 amu and finite, got {found[bad[0]]} for atom {bad[0]}")
    return found


def checked_frozen(batch: Batch, frozen: Sequence[int] | NDArray[Any] | None) -> NDArray[np.bool_]:
    """Which atoms are frozen [N], from a mask or from indices. Raises ValueError, IndexError."""
    found = np.zeros(batch.num_atoms, dtype=bool)
    if frozen is None:
        return found
    given = np.asarray(frozen)
    if given.dtype == bool:
        if given.shape != found.shape:
            raise ValueError(f"a mask of frozen atoms must have shape {list(found.shape)}, got {list(given.shape)}")
        return given.copy()
    if given.size and not np.issubdtype(given.dtype, np.integer):
        raise ValueError(f"frozen must be indices of atoms or a mask, got {given.dtype}")
    wrong = given[(given < 0) | (given >= batch.num_atoms)]
    if wrong.size:
        raise IndexError(f"frozen atoms must be from 0 to {batch.num_atoms - 1}, got {wrong.flat[0]}")
    found[given.astype(np.int64)] = True
    return found


def with_heavy_hydrogens(
    batch: Batch,
    masses: Floats,
    hydrogen: float,
    velocities: Floats | None = None,
    frozen: NDArray[np.bool_] | None = None,
) -> tuple[Floats, Floats | None]:
    """Masses [N] after repartitioning: each hydrogen has the mass `hydrogen`, amu, taken from its bonded heavy atom.

    The bonded atom is the nearest one that is not a hydrogen, if it is closer than 1.75 Å; other hydrogens keep their
    mass. The total mass and the sampled distribution of positions stay the same, and the fastest vibrations become
    slower. Velocities [N,3] of the masses before become such of the same temperature, as by `with_masses`, where
    `frozen` [N] atoms do not move.

    Raises:
        ValueError: If a heavy atom would be left with less than the mass of a hydrogen.
    """
    if not (np.isfinite(hydrogen) and hydrogen > 0):
        raise ValueError(f"hydrogen_mass must be > 0 amu and finite, got {hydrogen}")
    hydrogens, heavy = _bonded_hydrogens(batch)
    found = masses.copy()
    np.subtract.at(found, heavy, hydrogen - masses[hydrogens])
    found[hydrogens] = hydrogen
    light = np.flatnonzero(found < hydrogen)
    light = light[np.isin(light, heavy)]
    if len(light):
        raise ValueError(
            f"every heavy atom must keep at least the hydrogen mass of {hydrogen} amu, got {found[light[0]]:.3f} for "
            f"atom {light[0]}"
        )
    if velocities is None:
        return found, None
    still = np.zeros(len(masses), dtype=bool) if frozen is None else frozen
    ends = np.cumsum(batch.counts().cpu().numpy())[:-1]
    parts = (np.split(values, ends) for values in (velocities, masses, found, still))
    return found, np.concatenate([with_masses(*part) for part in zip(*parts, strict=True)])


def particles_of(
    batch: Batch, masses: Any, frozen: Any, hydrogen_mass: float | None, velocities: Any, momentum_kept: bool
) -> tuple[Particles, Floats | None]:
    """The particles of a run, and the given velocities for their masses. Raises ValueError, IndexError."""
    own, still = checked_masses(batch, masses), checked_frozen(batch, frozen)
    start = None if velocities is None else checked_velocities(velocities, batch.num_atoms)
    if hydrogen_mass is not None:
        own, start = with_heavy_hydrogens(batch, own, hydrogen_mass, start, still)
    return Particles.of(batch, own, still, momentum_kept=momentum_kept), start


def _bonded_hydrogens(batch: Batch) -> tuple[Integers, Integers]:
    """Hydrogens, and the heavy atom that each is bonded to."""
    host = batch.to("cpu", torch.float64)
    edges = EdgeSearch(LONGEST_BOND).allocate(host).trimmed()
    lengths = edges.vectors(host.positions, host.cell, host.system_index).norm(dim=-1).numpy()
    target, source = edges.target.numpy(), edges.source.numpy()
    numbers = host.atomic_numbers.numpy()
    bonded = (numbers[target] == 1) & (numbers[source] != 1)
    target, source, lengths = target[bonded], source[bonded], lengths[bonded]
    order = np.lexsort((lengths, target))
    hydrogens, nearest = np.unique(target[order], return_index=True)
    return hydrogens, source[order][nearest]


def with_masses(velocities: Floats, before: Floats, after: Floats, fixed: NDArray[np.bool_]) -> Floats:
    """Velocities [N,3] of a structure for other masses [N], of the same temperature.

    Each is multiplied by sqrt(m before / m after). The motion of the centre of mass stays too, unless atoms are fixed
    [N], and the kinetic energy about it.
    """
    if np.array_equal(before, after):
        return velocities
    scale = np.sqrt(before / after)[:, None]
    if fixed.any():
        return velocities * scale
    drift = np.average(velocities, axis=0, weights=before)
    inner = velocities - drift
    scaled = inner * scale
    scaled = scaled - np.average(scaled, axis=0, weights=after)
    left, energy = after @ (scaled * scaled).sum(1), before @ (inner * inner).sum(1)
    return drift + (scaled * np.sqrt(energy / left) if left > 0 else scaled)
