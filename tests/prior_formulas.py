"""Potentials of which only priors are left, and sums over pairs to compare them with."""

import math

import numpy as np
import oracles

from torchmdx import Potential, System, TensorNetConfig

STRUCTURES = ("ethanol", "crystal", "slab", "wire")


def only(*priors, **settings) -> Potential:
    """A potential whose network gives nothing, so that only its priors are left."""
    potential = Potential(TensorNetConfig(num_channels=2, num_layers=0, num_radial=2, cutoff=2.0, max_z=60), priors)
    potential.scale.zero_()
    return potential.double().eval().requires_grad_(False)


def pairs(atoms, cutoff):
    """(i, j, distance) of every pair, in both directions."""
    cell = atoms.cell.array
    for i, j, shift in oracles.neighbours(atoms.positions, cell, atoms.pbc, cutoff):
        yield i, j, math.dist(atoms.positions[j] + np.array(shift) @ cell, atoms.positions[i])


def summed(atoms, cutoff, energy_of_pair) -> np.ndarray:
    energies = np.zeros(len(atoms))
    for i, j, r in pairs(atoms, cutoff):
        energies[i] += 0.5 * energy_of_pair(i, j, r)
    return energies


def given_charges(atoms, charges) -> System:
    atoms.set_initial_charges(charges)
    atoms.info["charge"] = 0
    return System.from_ase(atoms)
