"""Systems with 1-4 interactions written as bonds: from GROMACS' files, of alchemy, and of any force field of OpenMM."""

import copy
import itertools
from collections.abc import Iterable
from pathlib import Path

import ase.build
import numpy as np
import openmm
from openmm import app

# Ethane of OPLS-AA; the combination rules 1 (GROMOS, C6 and C12) and 3 (OPLS) make OpenMM write 1-4 pairs as bonds.
TOP = """[ defaults ]
1 {rule} yes 0.5 0.5
[ atomtypes ]
CT CT 6 12.011 -0.18 A {carbon}
HC HC 1 1.008 0.06 A {hydrogen}
[ bondtypes ]
CT CT {bond} 0.1529 224262.4
CT HC {bond} 0.109 284512.0
[ angletypes ]
CT CT HC {angle} 110.7 313.8 {urey}
HC CT HC {angle} 107.8 276.144 {urey}
[ dihedraltypes ]
HC CT CT HC 3 0.6276 1.8828 0 -2.5104 0 0
[ moleculetype ]
ETH 3
"""
TYPES = {
    1: dict(carbon="2.0e-3 2.0e-6", hydrogen="1.2e-4 3.0e-8", bond=2, angle=1, urey=""),
    2: dict(carbon="0.35 0.276144", hydrogen="0.25 0.12552", bond=1, angle=5, urey="0.21 5000.0"),
    3: dict(carbon="0.35 0.276144", hydrogen="0.25 0.12552", bond=1, angle=1, urey=""),
}


def gromacs_ethane(rule: int, folder: Path) -> tuple[openmm.System, app.Topology, np.ndarray]:
    """Ethane from a topology of GROMACS with this combination rule; angles of rule 2 have Urey-Bradley terms."""
    molecule = ase.build.molecule("C2H6")
    hydrogens = {carbon: [h for h in range(2, 8) if molecule.get_distance(carbon, h) < 1.3] for carbon in (0, 1)}
    apart = list(itertools.product(*hydrogens.values()))
    sections = {
        "atoms": [
            f"{i + 1} {'HC' if i > 1 else 'CT'} 1 ETH A{i} {i + 1} {0.06 if i > 1 else -0.18} {mass}"
            for i, mass in enumerate(molecule.get_masses())
        ],
        "bonds": ["1 2 {bond}", *(f"{c + 1} {h + 1} {{bond}}" for c in (0, 1) for h in hydrogens[c])],
        "pairs": [f"{a + 1} {b + 1} 1" for a, b in apart],
        "angles": [
            *(f"{2 - c} {c + 1} {h + 1} {{angle}}" for c in (0, 1) for h in hydrogens[c]),
            *(f"{a + 1} {c + 1} {b + 1} {{angle}}" for c in (0, 1) for a, b in itertools.combinations(hydrogens[c], 2)),
        ],
        "dihedrals": [f"{a + 1} 1 2 {b + 1} 3" for a, b in apart],
        "system": ["ethane"],
        "molecules": ["ETH 1"],
    }
    text = TOP + "".join(f"[ {name} ]\n" + "\n".join(lines) + "\n" for name, lines in sections.items())
    (folder / "ethane.top").write_text(text.format(rule=rule, **TYPES[rule]))
    file = app.GromacsTopFile(str(folder / "ethane.top"))
    return file.createSystem(), file.topology, molecule.positions / 10


def alchemical(system: openmm.System, atoms: Iterable[int], *, annihilate: bool = True) -> openmm.System:
    """As openmmtools' AbsoluteAlchemicalFactory writes it without a lattice sum: nonbonded terms of `atoms` are custom.

    annihilate: terms between two of the atoms depend on λ, too.
    """
    chosen, made = set(atoms), copy.deepcopy(system)
    (force,) = [each for each in made.getForces() if isinstance(each, openmm.NonbondedForce)]
    rest = set(range(force.getNumParticles())) - chosen
    sterics = "U;U=lambda_sterics*4*epsilon*x*(x-1);x=(sigma/(softcore_alpha*(1-lambda_sterics)*sigma^6+r^6)^(1/6))^6;"
    charges = "U;U=lambda_electrostatics*138.935456*chargeprod/r;"
    kinds = [
        ("lambda_sterics", sterics, "epsilon=sqrt(epsilon1*epsilon2);sigma=0.5*(sigma1+sigma2);", ["sigma", "epsilon"]),
        ("lambda_electrostatics", charges, "chargeprod=charge1*charge2;", ["charge", "sigma"]),
    ]
    for name, expression, mixing, names in kinds:
        bond_names = ["chargeprod", "sigma"] if "charge" in names else names
        for inner in (True, False):
            fixed = inner and not annihilate
            end = f"{name}=1;" if fixed else ""
            pairs = openmm.CustomNonbondedForce(expression + mixing + end)
            bonds = openmm.CustomBondForce(expression + end)
            for custom, add, own in (
                (pairs, pairs.addPerParticleParameter, names),
                (bonds, bonds.addPerBondParameter, bond_names),
            ):
                if not fixed:
                    custom.addGlobalParameter(name, 1.0)
                custom.addGlobalParameter("softcore_alpha", 0.5)
                for each in own:
                    add(each)
            _fill(pairs, bonds, force, chosen, inner, names)
            pairs.addInteractionGroup(chosen, chosen if inner else rest)
            made.addForce(pairs)
            made.addForce(bonds)
    for index in chosen:
        force.setParticleParameters(index, 0.0, force.getParticleParameters(index)[1], 0.0)
    for index in range(force.getNumExceptions()):
        first, second, _, sigma, _ = force.getExceptionParameters(index)
        if {first, second} & chosen:
            force.setExceptionParameters(index, first, second, 0.0, sigma, 0.0)
    return made


def _fill(pairs, bonds, force: openmm.NonbondedForce, chosen: set[int], inner: bool, names: list[str]) -> None:
    """Particles and exclusions of a CustomNonbondedForce, and its exceptions as bonds."""
    for index in range(force.getNumParticles()):
        values = dict(zip(("charge", "sigma", "epsilon"), force.getParticleParameters(index), strict=True))
        pairs.addParticle([values[name] for name in names])
    for index in range(force.getNumExceptions()):
        first, second, product, sigma, epsilon = force.getExceptionParameters(index)
        pairs.addExclusion(first, second)
        values = [product, sigma] if "charge" in names else [sigma, epsilon]
        strength = product if "charge" in names else epsilon
        if strength._value and len({first, second} & chosen) == (2 if inner else 1):
            bonds.addBond(first, second, values)


def molecules_of(field: app.ForceField, most: int = 3, largest: int = 150) -> list[tuple[str, ...]]:
    """Names of residue templates that make molecules without virtual sites: some of one residue, and a pair."""
    usable = {name: each for name, each in field._templates.items() if _is_usable(each)}
    alone = sorted(
        (name for name, each in usable.items() if not each.externalBonds and 1 < len(each.atoms) <= largest),
        key=lambda name: (len(usable[name].atoms), name),
    )
    ends = sorted(name for name, each in usable.items() if len(each.externalBonds) == 1)
    chosen = [alone[k] for k in sorted(set(np.linspace(0, len(alone) - 1, most).astype(int)))] if alone else []
    return [*((name,) for name in chosen), *([(ends[0], ends[-1])] if len(ends) > 1 else [])]


def _is_usable(template) -> bool:
    return not template.virtualSites and all(atom.element is not None for atom in template.atoms)


def built(field: app.ForceField, names: tuple[str, ...]) -> tuple[openmm.System, app.Topology, np.ndarray]:
    """A molecule of one residue, or of two that are bonded, at made-up places at least 0.12 nm apart."""
    topology, ends, chosen = app.Topology(), [], {}
    chain = topology.addChain()
    for name in names:
        template = field._templates[name]
        residue = topology.addResidue(name, chain)
        chosen[residue] = name
        atoms = [topology.addAtom(atom.name, atom.element, residue) for atom in template.atoms]
        for first, second in template.bonds:
            topology.addBond(atoms[first], atoms[second])
        ends += [atoms[index] for index in template.externalBonds]
    if len(names) == 2:
        topology.addBond(*ends)
    options = dict(nonbondedMethod=app.NoCutoff, removeCMMotion=False)
    system = field.createSystem(topology, residueTemplates=chosen, **options)
    count = topology.getNumAtoms()
    edge = int(np.ceil(count ** (1 / 3)))
    random = np.random.default_rng(count)
    grid = random.permutation(np.array(list(itertools.product(range(edge), repeat=3))))[:count]
    return system, topology, 0.16 * grid + random.uniform(-0.02, 0.02, (count, 3))
