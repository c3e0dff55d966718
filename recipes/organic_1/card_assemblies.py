"""Water clusters and pairs of molecules: binding energies of GFN2-xTB and of a potential."""

from __future__ import annotations

from typing import Any

import numpy as np
from card_methods import Network, Structure, Workers, gfn2, join, relax
from rdkit import Chem
from rdkit.Chem import AllChem
from start_file import subset_of

from torchmdx.structures.units import KCAL_PER_MOL

WATERS = range(2, 13)
EACH = 3  # clusters of each size
RATTLE = 0.06  # Å, every coordinate, for forces away from the minimum
APART = 2.75  # Å, of oxygens before relaxing
NEAR, FAR, POINTS = 0.8, 3.0, 34  # of the distance at GFN2-xTB's minimum
FIRST_LOOK = np.arange(1.4, 6.0, 0.1)  # Å, for that minimum


def from_smiles(smiles: str) -> Structure:
    """A molecule, relaxed with GFN2-xTB."""
    mol = Chem.AddHs(Chem.MolFromSmiles(smiles))
    AllChem.EmbedMolecule(mol, randomSeed=1)
    numbers = np.array([atom.GetAtomicNum() for atom in mol.GetAtoms()])
    structure = Structure(numbers, mol.GetConformer().GetPositions(), Chem.GetFormalCharge(mol))
    return relax(structure, 0.01, 100) if len(numbers) > 1 else structure


def water_cluster(job: tuple[int, int]) -> dict[str, Any]:
    """A relaxed cluster and the same with displaced atoms, evaluated with GFN2-xTB. job: molecules, seed."""
    number, seed = job
    rng = np.random.default_rng([seed, number])
    water = from_smiles("O")
    shape = water.positions - water.positions[0]
    places = [np.zeros(3)]
    while len(places) < number:  # next to an existing one, not too near to any
        trial = places[rng.integers(len(places))] + APART * _direction(rng)
        if min(np.linalg.norm(trial - place) for place in places) > 0.95 * APART:
            places.append(trial)
    positions = np.concatenate([place + shape @ _rotation(rng).T for place in places])
    cluster = relax(Structure(np.tile(water.numbers, number), positions), 0.05, 150)
    shaken = cluster.at(cluster.positions + rng.normal(scale=RATTLE, size=cluster.positions.shape))
    return {
        "number": number,
        "water": water,
        "cluster": cluster,
        "shaken": shaken,
        "alone": gfn2(water)[0],
        "energy": gfn2(cluster)[0],
        "forces": gfn2(shaken)[1],
    }


def waters(network: Network, workers: Workers, seed: int) -> list[dict[str, Any]]:
    """Binding energies kcal/mol and errors of forces meV/Å, of each cluster."""
    jobs = [(number, seed + k) for number in reversed(WATERS) for k in range(EACH)]
    rows = []
    for result in workers.map(water_cluster, jobs):
        number = result["number"]
        bound = result["energy"] - number * result["alone"]
        ours = network(result["cluster"])[0] - number * network(result["water"])[0]
        difference = network(result["shaken"])[1] - result["forces"]
        rows.append(
            {
                "number": number,
                "subset": subset_of(f"{number} water"),
                "gfn2": bound / KCAL_PER_MOL,
                "network": ours / KCAL_PER_MOL,
                "forces_mae": 1e3 * float(np.abs(difference).mean()),
                "forces_scale": 1e3 * float(np.abs(result["forces"]).mean()),
            }
        )
    return sorted(rows, key=lambda row: row["number"])


# What is placed, how its atoms 'first' and 'second' face each other, and the name of their distance.
PAIRS = {
    "water, water": ("O", "O", "O–H···O"),
    "acetamide, acetamide": ("CC(N)=O", "CC(N)=O", "N–H···O, head to tail"),
    "benzene, benzene": ("c1ccccc1", "c1ccccc1", "stacked, face to face"),
    "methane, methane": ("C", "C", "C···C, staggered"),
    "ammonium, water": ("[NH4+]", "O", "N–H···O"),
    "chloride, water": ("O", "[Cl-]", "O–H···Cl"),
}


def pair(job: str) -> dict[str, Any]:
    """A scan of one pair: structures and GFN2-xTB's energies of them and of the two alone."""
    left, right, _ = PAIRS[job]
    first, second = from_smiles(left), from_smiles(right)
    place = _placer(job, first, second)
    alone = gfn2(first)[0] + gfn2(second)[0]
    look = [gfn2(place(float(r)))[0] - alone for r in FIRST_LOOK]
    rough = float(FIRST_LOOK[int(np.argmin(look))])
    fine = np.linspace(rough - 0.1, rough + 0.1, 9)
    best = float(fine[int(np.argmin([gfn2(place(float(r)))[0] for r in fine]))])
    distances = best * np.geomspace(NEAR, FAR, POINTS)
    structures = [place(float(r)) for r in distances]
    return {
        "pair": job,
        "minimum": best,
        "distances": distances,
        "alone": (first, second),
        "structures": structures,
        "gfn2": np.array([gfn2(s)[0] for s in structures]) - alone,
    }


def pairs(network: Network, workers: Workers) -> list[dict[str, Any]]:
    """Both curves of each pair, energies against the two alone, kcal/mol."""
    rows = []
    for result in workers.map(pair, PAIRS):
        alone = sum(network(structure)[0] for structure in result["alone"])
        ours = (np.array([network(s)[0] for s in result["structures"]]) - alone) / KCAL_PER_MOL
        theirs = result["gfn2"] / KCAL_PER_MOL
        outside = result["distances"] >= 0.95 * result["minimum"]
        rows.append(
            {
                "pair": result["pair"],
                "contact": PAIRS[result["pair"]][2],
                "minimum": result["minimum"],
                "distances": result["distances"].round(4).tolist(),
                "gfn2": theirs.round(4).tolist(),
                "network": ours.round(4).tolist(),
                "depth_gfn2": float(theirs.min()),
                "depth_network": float(ours[outside].min()),
                "rmse": float(np.sqrt(((ours - theirs)[outside] ** 2).mean())),
                "far_gfn2": float(theirs[-1]),
                "far_network": float(ours[-1]),
            }
        )
    return rows


def _placer(name: str, first: Structure, second: Structure) -> Any:
    """A function from the distance of the facing atoms, Å, to the pair."""
    if name.startswith("benzene"):
        normal = np.linalg.svd(first.positions - first.positions.mean(0))[2][2]
        a, b = first.positions - first.positions.mean(0), first.positions - first.positions.mean(0)
    elif name.startswith("methane"):
        normal = -_unit(first.positions[1] - first.positions[0])  # away from a hydrogen: staggered hydrogens
        a = first.positions - first.positions[0]
        b = -a
    else:
        heavy, light = _donor(first)
        acceptor = int(np.flatnonzero(np.isin(second.numbers, (8, 17)))[0])
        normal = _unit(first.positions[light] - first.positions[heavy])
        a, b = first.positions - first.positions[light], second.positions - second.positions[acceptor]
        if len(b) > 1:
            b = b @ _onto(_unit(b.mean(0)), normal).T
    return lambda r: join(first.at(a), second.at(b + r * normal))


def _donor(structure: Structure) -> tuple[int, int]:
    """A nitrogen or oxygen, and the first hydrogen bonded to it."""
    for heavy in np.flatnonzero(np.isin(structure.numbers, (7, 8))):
        apart = np.linalg.norm(structure.positions - structure.positions[heavy], axis=1)
        bonded = np.flatnonzero((structure.numbers == 1) & (apart < 1.2))
        if len(bonded):
            return int(heavy), int(bonded[0])
    raise ValueError("a pair with a hydrogen bond needs a hydrogen on nitrogen or oxygen, got none")


def _onto(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    middle = start + end
    if np.linalg.norm(middle) < 1e-6:
        middle = np.cross(start, [1.0, 0.3, 0.2])
    middle = _unit(middle)
    return 2 * np.outer(middle, middle) - np.eye(3)


def _unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


def _direction(rng: np.random.Generator) -> np.ndarray:
    return _unit(rng.standard_normal(3))


def _rotation(rng: np.random.Generator) -> np.ndarray:
    matrix, upper = np.linalg.qr(rng.standard_normal((3, 3)))
    matrix = matrix * np.sign(np.diag(upper))
    return matrix * np.sign(np.linalg.det(matrix))
