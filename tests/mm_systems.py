"""Alanine dipeptide, alone and in water, with force fields that come with OpenMM; energies of systems."""

import functools
from collections.abc import Iterable

import numpy as np
import openmm
from ase import Atoms
from openmm import app, unit
from structures import DATA

from torchmdx import Calculator, Potential
from torchmdx.structures.units import KJ_PER_MOL, NANOMETER

SOLUTE = tuple(range(22))
BOX = 2.0  # nm


@functools.cache
def _solvated() -> tuple[app.Topology, np.ndarray]:
    pdb = app.PDBFile(str(DATA / "alanine_dipeptide.pdb"))
    modeller = app.Modeller(pdb.topology, pdb.positions)
    modeller.addSolvent(force_field(), boxSize=openmm.Vec3(BOX, BOX, BOX) * unit.nanometer)
    return modeller.topology, np.array(modeller.positions.value_in_unit(unit.nanometer))


@functools.cache
def force_field(*names: str) -> app.ForceField:
    return app.ForceField(*(names or ("amber14-all.xml", "amber14/tip3p.xml")))


def water_box() -> tuple[app.Topology, np.ndarray]:
    """The dipeptide in a periodic cube of water, and positions in nm."""
    return _solvated()


def selected(indices: Iterable[int]) -> tuple[app.Topology, np.ndarray]:
    """Some atoms of the water box, without a box."""
    topology, positions = _solvated()
    wanted = set(indices)
    modeller = app.Modeller(topology, positions * unit.nanometer)
    modeller.delete([atom for atom in topology.atoms() if atom.index not in wanted])
    modeller.topology.setPeriodicBoxVectors(None)
    return modeller.topology, np.array(modeller.positions.value_in_unit(unit.nanometer))


def cluster(num_waters: int = 8) -> tuple[app.Topology, np.ndarray]:
    """The dipeptide and the waters nearest to it, without a box."""
    _, positions = _solvated()
    centre = positions[list(SOLUTE)].mean(0)
    oxygens = np.arange(22, len(positions), 3)
    nearest = sorted(oxygens[np.argsort(np.linalg.norm(positions[oxygens] - centre, axis=1))[:num_waters]])
    return selected([*SOLUTE, *(atom + k for atom in nearest for k in range(3))])


def mm_system(topology: app.Topology, *names: str, **options: object) -> openmm.System:
    """A force field's system; flexible, without cutoff and centre-of-mass remover unless `options` say else."""
    defaults = dict(nonbondedMethod=app.NoCutoff, constraints=None, rigidWater=False, removeCMMotion=False)
    return force_field(*names).createSystem(topology, **{**defaults, **options})


def energy_and_forces(
    system: openmm.System, positions: np.ndarray, platform: str = "Reference", **parameters: float
) -> tuple[float, np.ndarray]:
    """kJ/mol, and kJ/mol/nm [N,3]."""
    integrator = openmm.VerletIntegrator(0.001)
    context = openmm.Context(system, integrator, openmm.Platform.getPlatformByName(platform))
    context.setPositions(positions)
    for name, value in parameters.items():
        context.setParameter(name, value)
    state = context.getState(energy=True, forces=True)
    return state.getPotentialEnergy()._value, np.array(state.getForces(asNumpy=True)._value)


def ml_energy_and_forces(
    potential: Potential, topology: app.Topology, positions: np.ndarray, atoms: Iterable[int], charge: float = 0.0
) -> tuple[float, np.ndarray]:
    """The ASE calculator's, in OpenMM's units; forces on `atoms` alone. Periodic where the topology is."""
    atoms = list(atoms)
    numbers = [atom.element.atomic_number for atom in topology.atoms()]
    box = topology.getPeriodicBoxVectors()
    cell = None if box is None else np.array(box.value_in_unit(unit.angstrom))
    structure = Atoms([numbers[index] for index in atoms], positions[atoms] * NANOMETER, cell=cell, pbc=box is not None)
    structure.calc = Calculator(potential, dtype="float64", device="cpu", charge=charge)
    forces = structure.get_forces() / KJ_PER_MOL * NANOMETER
    return structure.get_potential_energy() / KJ_PER_MOL, forces


def assert_same(got: tuple[float, np.ndarray], wanted: tuple[float, np.ndarray], tolerance: float = 1e-6) -> None:
    """Energies and forces agree to `tolerance` of the energy and of the largest force."""
    assert abs(got[0] - wanted[0]) <= tolerance * abs(wanted[0])
    assert np.abs(got[1] - wanted[1]).max() <= tolerance * np.abs(wanted[1]).max()
