"""Snapshots: the complete state of a run at one step, and the file that a run continues from."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchmdx.dynamics.particles import Particles
from torchmdx.runtime.damaged_file import naming
from torchmdx.runtime.files import write_whole
from torchmdx.step.buffer_storage import SPREADS, UNCERTAINTIES, Doubts
from torchmdx.structures.units import BAR

FORMAT = "torchmdx dynamics 1"
# The coordinates that the potential sees, chosen by the captured step: they decide how numbers are rounded.
FRAME = ("order", "images", "origin", "far")
FAST = "fast_"  # before names of the fast potential's part of a file
SAVED = ("positions", "velocities", "forces", "energy", "restraint_energy", "virial", "temperatures", "cell")
# Of each structure, from an evaluation; files lack them.
DOUBTS = ("energy_spread", "largest_force_spread", "energy_uncertainty", "largest_uncertainty")

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Step, time fs, positions [N,3] Å, velocities [N,3] Å/fs, forces [N,3] eV/Å, energy [S] eV, cell [S,3,3] Å.

    energy is the potential energy, to which restraint_energy [S] eV adds that of restraints; forces are those of both.
    virial [S] eV is -Σ r·dU/dr, restraints included, NaN without a barostat. energy_spread [S] eV and
    largest_force_spread [S] eV/Å, of any atom, are standard deviations over the members of an ensemble, NaN of a single
    potential. energy_uncertainty [S] eV, and largest_uncertainty [S] eV of the energy of any atom, are those of a
    single potential if the run computes them, NaN otherwise. temperatures [S] K are those of the thermostat, frame is
    internal: how the captured step wraps and orders atoms.

    Attributes:
        timestep: Of a step; with multiple time steps that of the inner ones, which `step` counts.
        kick: `Motion.thermal_kick`, which makes kinetic energies, temperatures and pressures those of the thermostat.
        inner: Steps from here to the next evaluation of the full potential: 1 where the two potentials disagree.
        fast_forces, fast_frame: With multiple time steps, forces [N,3] of the fast potential and of restraints, and its
            frame.
    """

    step: int
    timestep: float
    positions: Floats
    velocities: Floats
    forces: Floats
    energy: Floats
    restraint_energy: Floats
    virial: Floats
    energy_spread: Floats
    largest_force_spread: Floats
    energy_uncertainty: Floats
    largest_uncertainty: Floats
    temperatures: Floats
    cell: Floats
    frame: dict[str, NDArray[np.generic]]
    particles: Particles
    kick: float = 0.0
    inner: int = 1
    fast_forces: Floats | None = None
    fast_frame: dict[str, NDArray[np.generic]] | None = None

    @property
    def time(self) -> float:
        """fs since step 0."""
        return self.step * self.timestep

    @property
    def kinetic_energy(self) -> Floats:
        """Of the degrees of freedom of each structure [S], eV; see `Particles`.

        With the Langevin integrator of velocities half a kick later, with multiple time steps after both half kicks at
        the beginning of an outer step; with others without the drift of the centre of
        mass, where nothing outside acts on the structure.
        """
        forces = kick_forces(self.forces, self.fast_forces, self.inner)
        return self.particles.kinetic_energy(self.particles.kicked(self.velocities, self.kick, forces))

    @property
    def temperature(self) -> Floats:
        """Kinetic temperature of each structure [S], K."""
        return self.particles.temperature(self.kinetic_energy)

    @property
    def volume(self) -> Floats:
        """Of the cell of each structure [S], Å³; 0 without one."""
        found: Floats = np.abs(np.linalg.det(self.cell))
        return found

    @property
    def pressure(self) -> Floats:
        """(2 K + virial) / (3 V) of each structure [S], bar; NaN without a barostat. See `Particles.kinetic_virial`."""
        kinetic = self.particles.kinetic_virial(self.kinetic_energy, self.temperatures)
        with np.errstate(divide="ignore", invalid="ignore"):
            return (kinetic + self.virial) / (3 * self.volume) / BAR

    def with_states(self, other: Snapshot, chosen: NDArray[np.bool_]) -> Snapshot:
        """This snapshot, with the chosen structures [S] in the states of another one of the same run.

        `Dynamics.restore` then continues from both. Step and temperatures are those of this one. Not for multiple time
        steps.
        """
        if self.fast_forces is not None:
            raise ValueError("states of two snapshots can be joined without a fast potential only, got one with it")
        atoms = chosen[self.particles.system]
        found: dict[str, Any] = {}
        for name in ("positions", "velocities", "forces"):
            found[name] = np.where(atoms[:, None], getattr(other, name), getattr(self, name))
        for name in ("energy", "restraint_energy", "virial", *DOUBTS):
            found[name] = np.where(chosen, getattr(other, name), getattr(self, name))
        found["cell"] = np.where(chosen[:, None, None], other.cell, self.cell)
        images = np.where(atoms[:, None], _images(other), _images(self))[self.frame["order"]]
        origin = np.where(chosen[:, None], other.frame["origin"], self.frame["origin"])
        return replace(self, frame=self.frame | {"images": images, "origin": origin}, **found)

    def save(self, path: str | Path) -> None:
        """Writes the file atomically; `Dynamics.restore` continues from it to the bit. Raises OSError."""
        arrays = {name: getattr(self, name) for name in SAVED} | self.frame
        if self.fast_forces is not None and self.fast_frame is not None:
            arrays |= {FAST + "forces": self.fast_forces} | {FAST + key: self.fast_frame[key] for key in FRAME}
        content = io.BytesIO()
        np.savez(content, format=FORMAT, step=self.step, timestep=self.timestep, **arrays)
        write_whole(Path(path), content.getvalue())


def doubts_named(doubts: Doubts | None, of_energy: Floats, largest: Floats) -> dict[str, Floats]:
    """Spreads and uncertainties of a snapshot by name; NaN for those that a step with these doubts does not compute."""
    unknown = np.full(len(of_energy), np.nan)
    spreads = (of_energy, largest) if doubts == SPREADS else (unknown, unknown)
    uncertainties = (of_energy, largest) if doubts == UNCERTAINTIES else (unknown, unknown)
    return dict(zip(DOUBTS, (*spreads, *uncertainties), strict=True))


def _images(snapshot: Snapshot) -> NDArray[Any]:
    """The lattice vectors that the frame moves each atom [N,3] by, in the order of the atoms."""
    images = np.empty_like(snapshot.frame["images"])
    images[snapshot.frame["order"]] = snapshot.frame["images"]
    return images


def kick_forces(forces: Floats, fast: Floats | None, inner: int) -> Floats:
    """The forces of the next half kick: f + n (F - f) at the beginning of n steps with a fast potential."""
    return forces if fast is None else fast + inner * (forces - fast)


def load_snapshot(path: str | Path, particles: Particles) -> Snapshot:
    """A snapshot from a file, for the particles of a run. Never runs code from the file.

    Raises:
        ValueError: For other files, damaged ones, and those of other numbers of atoms or structures.
    """
    path = Path(path)
    with naming(path):
        with path.open("rb") as file:
            held = np.load(file, allow_pickle=False)
            if not isinstance(held, np.lib.npyio.NpzFile) or "format" not in held or str(held["format"]) != FORMAT:
                raise ValueError(f"{str(path)!r} must be a snapshot of torchmdx's dynamics, got other content")
            fast = tuple(FAST + name for name in ("forces", *FRAME)) if FAST + "forces" in held else ()
            found = {name: held[name] for name in ("step", "timestep", *SAVED, *FRAME, *fast)}
        num_atoms, num_systems = len(particles.system), particles.num_systems
        per_atom = ("positions", "velocities", "forces", "images")
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(per_atom, (num_atoms, 3))
        shapes |= dict.fromkeys(("energy", "restraint_energy", "virial", "temperatures"), (num_systems,))
        shapes |= dict(cell=(num_systems, 3, 3), origin=(num_systems, 3), order=(num_atoms,))
        shapes |= dict.fromkeys(("step", "timestep", "far"), ())
        shapes |= {name: shapes[name.removeprefix(FAST)] for name in fast}
        for name, shape in shapes.items():
            if found[name].shape != shape:
                raise ValueError(f"{name} in {str(path)!r} must have shape {shape}, got {found[name].shape}")
            if name != "virial" and not np.isfinite(found[name]).all():
                raise ValueError(f"{name} in {str(path)!r} must be finite")
        for name in ("order", *(name for name in fast if name == FAST + "order")):
            if not np.array_equal(np.sort(found[name]), np.arange(num_atoms)):
                raise ValueError(f"{name} in {str(path)!r} must be a permutation of {num_atoms} atoms")
        saved: dict[str, Any] = {name: found[name] for name in SAVED}
        saved |= doubts_named(None, saved["energy"], saved["energy"])  # files lack them: `restore` evaluates them
        return Snapshot(
            step=int(found["step"]),
            timestep=float(found["timestep"]),
            frame={name: found[name] for name in FRAME},
            particles=particles,
            fast_forces=found.get(FAST + "forces"),
            fast_frame={name: found[FAST + name] for name in FRAME} if fast else None,
            **saved,
        )
