"""Virials of atoms: they add up to the stress, and those of the heat flux are the ones of an explicit crystal."""

import numpy as np
import pytest
import torch
from ase import Atoms
from domains import divide

from torchmdx import Potential, System, TensorNetConfig, evaluate
from torchmdx.lammps.example import water
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.priors.zbl import ZBLConfig
from torchmdx.step.domain_reach import reach
from torchmdx.step.domain_step import DomainStep


def potential(dtype=torch.float64, seed=0) -> Potential:
    torch.manual_seed(seed)
    config = TensorNetConfig(num_channels=16, num_radial=8, num_layers=1, cutoff=3.0)
    return Potential(config, [ZBLConfig(cutoff=3.0)]).to(dtype)


def virials_of_atoms(model, atoms: Atoms, flux: bool, parts: int) -> np.ndarray:
    """[N,3,3], summed over the parts; one part is periodic itself in all directions."""
    found = np.zeros((len(atoms), 3, 3))
    for part in divide(atoms, parts, reach(model), 3.0) if parts > 1 else [None]:
        numbers = np.arange(len(atoms)) if part is None else part.atoms
        positions, num_owned, hops = (atoms.positions, len(atoms), None) if part is None else (
            part.positions, part.num_owned, part.hops,
        )  # fmt: skip
        step = DomainStep(model, [axis > 0 or part is None for axis in range(3)] if atoms.pbc.all() else [False] * 3)
        step.assign(positions, atoms.numbers[numbers], num_owned, atoms.cell.array, num_total=len(atoms), hops=hops)
        step(positions, atoms.cell.array)
        np.add.at(found, numbers, step.atom_virials(flux=flux))
    return found


@pytest.mark.nightly_for("2-2")
@pytest.mark.parametrize(("parts", "members"), [(1, 1), (2, 2)])
def test_virials_of_atoms_add_up(parts, members):
    """To the stress of the whole; those of the flux are Σ_i (r_j - r_i) ⊗ ∂e_i/∂r_j of an explicit crystal."""
    atoms = water(8)
    models = [potential(seed=seed) for seed in range(members)]
    model = models[0] if members == 1 else Ensemble(models)
    total = evaluate(model, System.from_ase(atoms), stress=True).stress[0].numpy() * atoms.get_volume()
    of_edges, of_flux = (virials_of_atoms(model, atoms, flux, parts) for flux in (False, True))
    bound = 1e-12 * np.abs(of_edges).max()
    for found in (of_edges, of_flux):
        assert np.abs(found.sum(0) - total).max() < 24 * bound
    assert np.abs(of_edges - of_flux).max() > 0.01  # where atoms pass messages, the two are different divisions
    crystal, expected = atoms.repeat(3), np.zeros((24, 3, 3))
    crystal.pbc = False
    crystal.positions -= crystal.positions[13 * 24 : 14 * 24].mean(0)
    batch = System.from_ase(crystal)
    batch.positions.requires_grad_()
    for member in models:
        energies = evaluate(member, batch, create_graph=True).energies
        for i in range(13 * 24, 14 * 24):
            (slope,) = torch.autograd.grad(energies[i], batch.positions, retain_graph=True)
            away = (batch.positions - batch.positions[i]).detach()
            outer = (away[:, :, None] * slope[:, None, :]).numpy() / members
            expected += outer.reshape(27, 24, 3, 3).sum(0)
    assert np.abs(of_flux - expected).max() < bound


@pytest.mark.nightly
@pytest.mark.parametrize("flux", [False, True])
def test_virials_of_atoms_of_a_pair_potential(flux):
    """Half of r ⊗ dE/dr of each pair to either of its atoms, whatever the division; in float32 too."""
    model, atoms = potential(torch.float32), water(8)
    atoms.pbc = False
    model.scale.zero_()
    found, expected = virials_of_atoms(model, atoms, flux, 2), np.zeros((len(atoms), 3, 3))
    for i in range(len(atoms)):
        for j in range(i):
            if np.linalg.norm(between := atoms.positions[i] - atoms.positions[j]) < 3.0:
                pair = evaluate(model.double(), System.from_ase(atoms[[i, j]]))
                expected[[i, j]] -= 0.5 * between[:, None] * pair.forces[0].numpy()[None, :]
    assert np.abs(found - expected).max() < 2e-5 * np.abs(expected).max()
