"""ML/MM systems that several test files look at, some of them with made-up terms of every kind."""

from collections.abc import Iterable

import numpy as np
import openmm
from mm_systems import SOLUTE, cluster, mm_system, water_box
from openmm import app, unit

from torchmdx import Potential
from torchmdx.openmm.mixed import create_mixed_system

LAMBDA = "lambda_interpolate"
FF19 = ("amber19-all.xml", "amber19/tip3p.xml")  # has CMAP terms
# Forces of `made_up` that could be biases: with a global parameter, or on angles that have another term.
DOUBTFUL = ("CustomBondForce", "CustomAngleForce", "CustomTorsionForce")
METHODS = {
    "no cutoff": dict(nonbondedMethod=app.NoCutoff),
    "reaction field": dict(nonbondedMethod=app.CutoffNonPeriodic),
    "periodic reaction field": dict(nonbondedMethod=app.CutoffPeriodic, switchDistance=0.6),
    "Ewald": dict(nonbondedMethod=app.Ewald),
    "PME": dict(nonbondedMethod=app.PME, switchDistance=0.6),
    "PME with own width": dict(nonbondedMethod=app.PME),
    "LJPME": dict(nonbondedMethod=app.LJPME),
}


def mix(
    system: openmm.System, topology: app.Topology, atoms: Iterable[int], potential: Potential, **options: object
) -> openmm.System:
    """create_mixed_system, in float64 on the CPU; forces of `made_up` are the force field's."""
    names = [force.getName() for force in system.getForces() if type(force).__name__ in DOUBTFUL]
    options = {"replace": names, **options}
    if options.get("link_atoms"):
        options.setdefault("charge", 0)  # MM charges of a region that cuts bonds are no whole number
    return create_mixed_system(
        system,
        topology,
        atoms,
        potential,
        **{"precision": "float64", "transport": "python", "device": "cpu", **options},
    )


def solute_and_far_water(positions: np.ndarray) -> tuple[int, ...]:
    """The dipeptide and the water farthest from it, whose pairs are beyond a cutoff, some across the box's border."""
    centre = positions[list(SOLUTE)].mean(0)
    far = max(range(22, len(positions), 3), key=lambda index: float(np.linalg.norm(positions[index] - centre)))
    return (*SOLUTE, far, far + 1, far + 2)


def system_with(method: str) -> tuple[openmm.System, app.Topology, np.ndarray]:
    options = METHODS[method]
    periodic = options["nonbondedMethod"] not in (app.NoCutoff, app.CutoffNonPeriodic)
    topology, positions = water_box() if periodic else cluster(30)
    system = mm_system(topology, nonbondedCutoff=0.75 * unit.nanometer, **options)
    if method == "PME with own width":
        nonbonded_of(system).setPMEParameters(3.1, 24, 24, 24)
    return system, topology, positions


def nonbonded_of(system: openmm.System) -> openmm.NonbondedForce:
    (force,) = [force for force in system.getForces() if isinstance(force, openmm.NonbondedForce)]
    return force


def force_of(system: openmm.System, kind: str) -> openmm.Force:
    (force,) = [force for force in system.getForces() if type(force).__name__ == kind]
    return force


def made_up() -> tuple[openmm.System, app.Topology, np.ndarray]:
    """Two chains of atoms, of which 0 to 5 shall be the region, with terms of every kind inside, across and outside."""
    topology = app.Topology()
    residue = topology.addResidue("AR", topology.addChain())
    system = openmm.System()
    for index in range(10):
        topology.addAtom(f"A{index}", app.Element.getBySymbol("Cl"), residue)
        system.addParticle(35.0)
    atoms = list(topology.atoms())
    for index in (0, 1, 2, 3, 4, 6, 7, 8):
        topology.addBond(atoms[index], atoms[index + 1])
    bond, angle, torsion = openmm.HarmonicBondForce(), openmm.HarmonicAngleForce(), openmm.PeriodicTorsionForce()
    ryckaert, cmap = openmm.RBTorsionForce(), openmm.CMAPTorsionForce()
    own_bond = openmm.CustomBondForce("first+second; second=k*r^3; first=common*r")
    own_angle, own_torsion = openmm.CustomAngleForce("k*sin(theta)"), openmm.CustomTorsionForce("k*cos(2*theta)")
    own_bond.addGlobalParameter("common", 2.5)
    own_bond.addPerBondParameter("k")
    own_angle.addPerAngleParameter("k")
    own_torsion.addPerTorsionParameter("k")
    compound = openmm.CustomCompoundBondForce(3, "k*distance(p1,p2)*distance(p2,p3)*curve(distance(p1,p3))")
    compound.addPerBondParameter("k")
    compound.addTabulatedFunction("curve", openmm.Continuous1DFunction([1.0, 3.0, 2.0, 5.0], 0.0, 3.0))
    cmap.addMap(6, np.random.default_rng(3).normal(size=36))
    for start in range(7):
        a, b, c, d = range(start, start + 4)
        k = 3.0 + start
        bond.addBond(a, b, 0.3, 50 * k)
        angle.addAngle(a, b, c, 1.7, 9 * k)
        torsion.addTorsion(a, b, c, d, 2, 0.4, k)
        ryckaert.addTorsion(a, b, c, d, k, -2 * k, 3, k, -1.5, 2 * k)
        own_bond.addBond(a, c, [k])
        own_angle.addAngle(b, c, d, [k])
        own_torsion.addTorsion(a, c, b, d, [k])
        compound.addBond([a, b, c], [k])
    for start in range(5):
        cmap.addTorsion(0, *range(start, start + 4), *range(start + 2, start + 6))
    for force in (bond, angle, torsion, ryckaert, cmap, own_bond, own_angle, own_torsion, compound):
        system.addForce(force)
    positions = np.cumsum(np.random.default_rng(5).normal(scale=0.25, size=(10, 3)), 0)
    return system, topology, positions


def with_custom_nonbonded(groups: list[tuple[set[int], set[int]]]) -> tuple[openmm.System, app.Topology, np.ndarray]:
    system, topology, positions = made_up()
    standard = openmm.NonbondedForce()
    custom = openmm.CustomNonbondedForce("both*exp(-3*r); both=depth1*depth2")
    custom.addPerParticleParameter("depth")
    for index in range(10):
        standard.addParticle((-1) ** index * 0.3, 0.3, 0.5)
        custom.addParticle([20.0 + index])
    for first in (0, 1, 2, 3, 4, 6, 7, 8):  # not across the border: that would be a covalent bond
        standard.addException(first, first + 1, 0, 1, 0)
        custom.addExclusion(first, first + 1)
    standard.addException(0, 3, 0.1, 0.2, 0.4)
    custom.addExclusion(3, 0)
    for group in groups:
        custom.addInteractionGroup(*group)
    custom.setName("tails")
    system.addForce(standard)
    system.addForce(custom)
    return system, topology, positions


def without_bonds(topology: app.Topology) -> app.Topology:
    bare = app.Topology()
    for chain in topology.chains():
        own = bare.addChain()
        for residue in chain.residues():
            copied = bare.addResidue(residue.name, own)
            for atom in residue.atoms():
                bare.addAtom(atom.name, atom.element, copied)
    return bare
