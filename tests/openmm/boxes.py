"""ASE structures as OpenMM systems, and what the calculator says of them."""

import numpy as np
import openmm
from ase import Atoms
from openmm import app, unit

from torchmdx import Calculator
from torchmdx.structures.units import KJ_PER_MOL, NANOMETER


def topology_of(atoms: Atoms) -> app.Topology:
    """One residue, with the box of the atoms if they have one."""
    topology = app.Topology()
    residue = topology.addResidue("ALL", topology.addChain())
    for number in atoms.numbers:
        element = app.Element.getByAtomicNumber(int(number))
        topology.addAtom(element.symbol, element, residue)
    if atoms.pbc.all():
        topology.setPeriodicBoxVectors(box_of(atoms))
    return topology


def box_of(atoms: Atoms) -> list[openmm.Vec3]:
    return [openmm.Vec3(*row) * unit.nanometer for row in atoms.cell.array / NANOMETER]


def empty_system(atoms: Atoms) -> openmm.System:
    system = openmm.System()
    for mass in atoms.get_masses():
        system.addParticle(mass)
    return system


def context_of(system: openmm.System, atoms: Atoms, platform: str = "Reference", **properties: str) -> openmm.Context:
    """A context at the positions of the atoms, with a step of 0.5 fs."""
    integrator = openmm.VerletIntegrator(0.0005)
    context = openmm.Context(system, integrator, openmm.Platform.getPlatformByName(platform), properties)
    context.setPositions(atoms.positions / NANOMETER)
    context.setVelocities(np.zeros((len(atoms), 3)))
    return context


def found(context: openmm.Context, **options) -> tuple[float, np.ndarray]:
    """Energy (eV) and forces (eV/Å) that a context gives."""
    state = context.getState(energy=True, forces=True, **options)
    energy = state.getPotentialEnergy().value_in_unit(unit.kilojoule_per_mole) * KJ_PER_MOL
    forces = state.getForces(asNumpy=True).value_in_unit(unit.kilojoule_per_mole / unit.nanometer)
    return energy, np.array(forces) * KJ_PER_MOL / NANOMETER


def expected(potential, atoms: Atoms, dtype: str = "float64", **options) -> tuple[float, np.ndarray]:
    """The same from the ASE calculator, on the CPU."""
    atoms = atoms.copy()
    atoms.calc = Calculator(potential, dtype=dtype, device="cpu", **options)
    return atoms.get_potential_energy(), atoms.get_forces()


def assert_same(one, other, tolerance=1e-9) -> None:
    assert abs(one[0] - other[0]) <= tolerance * max(1.0, abs(other[0])), (one[0], other[0])
    assert np.linalg.norm(one[1] - other[1]) <= tolerance * max(1e-3, np.linalg.norm(other[1]))
