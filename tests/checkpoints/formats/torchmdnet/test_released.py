"""AceFF against what torchmd-net computes with it in float64."""

import numpy as np
import pytest
import torch
from ase import Atoms
from released_files import released, upstream

from torchmdx import Calculator, load

# As upstream had them: its Coulomb energies of every structure end at 12 Å, with a reaction field.
OPTIONS = {"aceff-1.1": {}, "aceff-2.0": dict(coulomb="reaction_field_everywhere", coulomb_cutoff=12.0)}
LIMITS = {"float64": (1e-7, 1e-7), "float32": (3e-6, 2e-6)}  # of relative force errors; of energies, eV per atom


def structure(frame):
    cell = frame["cell"]
    return Atoms(
        frame["numbers"], frame["positions"], cell=cell, pbc=cell is not None, info={"charge": frame["charge"] or 0}
    )


@pytest.mark.filterwarnings("ignore:.*truncates the Coulomb energy:UserWarning")
@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("name", OPTIONS)
def test_results_are_those_of_torchmd_net(name, dtype):
    """Of toluene, and of a peptide in a box of water."""
    potential = load(released(name), dtype=getattr(torch, dtype), **OPTIONS[name])
    calculator, (most, each) = Calculator(potential, dtype=dtype, device="cpu"), LIMITS[dtype]
    for frame in upstream(name):
        atoms = structure(frame)
        atoms.calc = calculator
        wanted = np.array(frame["forces"])
        error = np.linalg.norm(atoms.get_forces() - wanted) / np.linalg.norm(wanted)
        energy = abs(atoms.get_potential_energy() - frame["energy"]) / len(atoms)
        assert (error < most, energy < each) == (True, True), (frame["name"], error, energy)
