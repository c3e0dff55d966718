"""Phonons from finite displacements, by phonopy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from torchmdx.materials.crystal import require_crystal, supercell_of
from torchmdx.runtime.optional_package import require_package

if TYPE_CHECKING:
    from ase import Atoms

UNSTABLE = -0.1  # THz: modes below are no errors of the acoustic modes
LEAST_FREQUENCY = 1e-3  # THz, of modes that have thermal energy: not the acoustic ones at Γ
MESH = 60.0  # Å, length of the mesh, as phonopy measures it
TEMPERATURES = (0, 1000, 10)  # K
INITIAL = ("initial_charges", "initial_magmoms")  # of atoms, which potentials may take as given
JOULE_PER_MOL = 1 / 96485.33212  # kJ/mol in eV is 1000 times this


@dataclass(frozen=True, kw_only=True)
class Phonons:
    """Of the primitive cell; frequencies in THz, imaginary ones negative.

    Attributes:
        supercell: How often the given cell was repeated; num_displacements: evaluations of it.
        path: [P] along the bands; frequencies: [P,3n]; ticks: places and labels of special points.
        density_frequencies, density: The density of states.
        stable: Whether no mode on the mesh or path is imaginary.
        temperatures: K; free_energy: eV; entropy, heat_capacity: J/mol/K. Without imaginary modes.
        zero_point_energy: eV, likewise.
    """

    supercell: tuple[int, int, int]
    num_atoms: int
    num_displacements: int
    path: list[float]
    frequencies: list[list[float]]
    ticks: list[tuple[float, str]]
    density_frequencies: list[float]
    density: list[float]
    lowest: float
    highest: float
    stable: bool
    zero_point_energy: float
    temperatures: list[float]
    free_energy: list[float]
    entropy: list[float]
    heat_capacity: list[float]


def phonons(
    atoms: Atoms,
    *,
    supercell: tuple[int, int, int] | None = None,
    displacement: float = 0.01,
    points: int = 200,
) -> Phonons:
    """Bands, density of states and thermal properties in the harmonic approximation.

    Args:
        atoms: With a calculator; relaxed tightly with their cell.
        supercell: How often the cell is repeated; None for at least 10 Å between opposite faces.
        displacement: Å.
        points: Along the path through the special points of the lattice.

    Raises:
        ImportError: Without phonopy.
        ValueError: For bad settings, and atoms that are no crystal.
    """
    require_crystal(atoms)
    if not 0 < displacement < 1:
        raise ValueError(f"displacement must be > 0 and < 1 Å, got {displacement}")
    times = supercell_of(atoms, supercell)
    found = force_constants(atoms, times, displacement)
    axis, ticks, bands = _bands(found, points)
    found.run_mesh(MESH)
    found.run_total_dos()
    first, last, step = TEMPERATURES
    found.run_thermal_properties(t_min=first, t_max=last, t_step=step, cutoff_frequency=LEAST_FREQUENCY)
    thermal, density, on_mesh = found.thermal_properties, found.total_dos, found.mesh.frequencies
    lowest = float(min(bands.min(), on_mesh.min()))
    free = thermal.free_energy * 1000 * JOULE_PER_MOL
    return Phonons(
        supercell=times,
        num_atoms=len(found.primitive),
        num_displacements=len(found.supercells_with_displacements),
        path=axis,
        frequencies=bands.tolist(),
        ticks=ticks,
        density_frequencies=density.frequency_points.tolist(),
        density=density.dos.tolist(),
        lowest=lowest,
        highest=float(max(bands.max(), on_mesh.max())),
        stable=lowest > UNSTABLE,
        zero_point_energy=float(free[0]),
        temperatures=thermal.temperatures.tolist(),
        free_energy=free.tolist(),
        entropy=thermal.entropy.tolist(),
        heat_capacity=thermal.heat_capacity.tolist(),
    )


def force_constants(atoms: Atoms, supercell: tuple[int, int, int], displacement: float) -> Any:
    """A Phonopy object with force constants, whose displacements symmetry has reduced. Raises ImportError."""
    from ase import Atoms

    require_package("phonopy", "phonons need", "properties")
    from phonopy import Phonopy
    from phonopy.structure.atoms import PhonopyAtoms
    from phonopy.structure.cells import guess_primitive_matrix

    handedness = atoms.cell.handedness  # -1: phonopy needs the opposite vectors
    cell = PhonopyAtoms(
        numbers=atoms.numbers,
        cell=handedness * atoms.cell.array,
        scaled_positions=handedness * atoms.get_scaled_positions(),
        masses=atoms.get_masses(),
    )
    found: Any = Phonopy(cell, np.diag(supercell), primitive_matrix=guess_primitive_matrix(cell))
    found.generate_displacements(distance=displacement)
    forces = []
    for moved in found.supercells_with_displacements:
        at = Atoms(moved.numbers, moved.positions, cell=moved.cell, pbc=True, info=dict(atoms.info))
        for name in INITIAL:
            if atoms.has(name):  # images of an atom follow each other
                at.set_array(name, np.repeat(atoms.get_array(name), len(at) // len(atoms), axis=0))
        at.calc = atoms.calc
        forces.append(at.get_forces())
    found.forces = np.array(forces)
    found.produce_force_constants()
    found.symmetrize_force_constants()
    return found


def _bands(found: Any, points: int) -> tuple[list[float], list[tuple[float, str]], np.ndarray]:
    """The path, its special points, and frequencies [P,3n] along it."""
    from ase.cell import Cell

    path = Cell(found.primitive.cell).bandpath(npoints=points)
    found.run_band_structure([path.kpts])
    axis, places, labels = path.get_linear_kpoint_axis()
    ticks = [(float(place), label) for place, label in zip(places, labels, strict=True)]
    return axis.tolist(), ticks, np.asarray(found.band_structure.frequencies[0])
