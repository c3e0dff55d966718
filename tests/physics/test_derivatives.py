"""First and second derivatives against finite differences, in float64."""

import numpy as np
import oracles
import pytest
import torch
from model_kinds import coulomb, zbl

from torchmdx import Batch, System, evaluate
from torchmdx.neighbors.brute_force import brute_force


def energies_of(potential, atoms):
    """A function of a list of (positions, cell) to energies; cell None keeps the one of `atoms`."""

    def energies(moved):
        batch = Batch.from_systems(
            [
                System.create(
                    positions,
                    atoms.numbers,
                    atoms.cell.array if cell is None else cell,
                    atoms.pbc,
                    atoms.info.get("charge", 0),
                )
                for positions, cell in moved
            ]
        )
        return evaluate(potential, batch, forces=False).energy.numpy()

    return energies


def assert_relative(got, wanted, tolerance=1e-6):
    scale = np.abs(wanted).max()
    assert scale > 1e-3
    assert np.abs(np.asarray(got) - np.asarray(wanted)).max() < tolerance * scale


def test_forces_are_the_slope_of_the_energy(conforming, structure):
    forces = evaluate(conforming, System.from_ase(structure)).forces
    assert_relative(forces, oracles.central_forces(energies_of(conforming, structure), structure.positions))


@pytest.mark.parametrize("name", ["crystal", "slab", "boxed"])
def test_stress_is_the_slope_of_the_energy_with_strain(conforming, name, request):
    atoms = request.getfixturevalue(name)
    stress = evaluate(conforming, System.from_ase(atoms), stress=True).stress[0]
    wanted = oracles.finite_strain(energies_of(conforming, atoms), atoms.positions, atoms.cell.array)
    volume = atoms.get_volume()
    assert_relative(stress * volume, wanted * volume)


@pytest.fixture
def boxed(ethanol):
    """A molecule in a cell that is not periodic."""
    ethanol.set_cell([[8, 1, 0], [0, 9, 0], [-1, 0, 7]])
    return ethanol


@pytest.mark.parametrize("name", ["ethanol", "crystal"])
def test_the_gradient_of_forces_is_the_hessian(conforming, name, request):
    potential, atoms = conforming, request.getfixturevalue(name)
    batch = Batch.from_systems([System.from_ase(atoms)])
    direction = np.random.default_rng(0).normal(size=atoms.positions.shape)
    positions = batch.positions.requires_grad_()
    forces = evaluate(potential, batch, create_graph=True).forces
    (got,) = torch.autograd.grad((forces * torch.tensor(direction)).sum(), positions)

    def forces_at(k):
        atoms.positions = positions.detach().numpy() + 1e-3 * k * direction
        return evaluate(potential, System.from_ase(atoms)).forces.numpy()

    # The Hessian is symmetric: its product with a direction is the slope of the forces along it.
    wanted = sum(weight * forces_at(k) for k, weight in oracles.STENCIL.items()) / 1e-3
    assert_relative(got, wanted)


def loss(potential, batch, edges):
    """A training loss: squares of energy, forces and stress against targets."""
    result = evaluate(potential, batch, edges, stress=True, create_graph=True)
    targets = torch.linspace(-1, 1, result.forces.numel(), dtype=torch.float64).reshape(result.forces.shape)
    volume = 30.0  # brings the stress to the size of the others
    return (
        ((result.energy - 1) ** 2).sum()
        + ((result.forces - targets) ** 2).sum()
        + ((volume * result.stress) ** 2).sum()
    )


TRAINED = {
    "basis": dict(trainable_basis=True),
    "SO(3)": dict(group="SO(3)", radial_basis="gauss"),
    "tensornet2": dict(model="tensornet2", priors=[coulomb, zbl]),
}


@pytest.mark.parametrize("spare", [0, 25], ids=["exact", "padded"])
@pytest.mark.parametrize("settings", TRAINED)
def test_the_gradient_of_a_loss_on_forces_and_stress(make_potential, crystal, slab, settings, spare):
    potential = make_potential(**TRAINED[settings]).requires_grad_(True)
    boxed = crystal.copy()
    boxed.pbc = False  # pairs that no list holds
    batch = Batch.from_systems([System.from_ase(atoms) for atoms in (crystal, slab, boxed)])
    edges = brute_force(batch, potential.cutoff)
    edges = brute_force(batch, potential.cutoff, edges.capacity + spare)
    weights = [parameter for parameter in potential.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(loss(potential, batch, edges), weights)
    assert all(torch.isfinite(gradient).all() for gradient in gradients)
    names = [name for name, _ in potential.named_parameters()]
    for seed, chosen in enumerate((names, names[: len(names) // 2], names[len(names) // 2 :])):
        assert_slope(potential, batch, edges, dict(zip(names, gradients, strict=True)), chosen, seed)


def assert_slope(potential, batch, edges, gradients, chosen, seed):
    """The loss changes along a random direction of the chosen weights as the gradient says."""
    generator = torch.Generator().manual_seed(seed)
    weights = {name: weight for name, weight in potential.named_parameters() if name in chosen}
    start = {name: weight.detach().clone() for name, weight in weights.items()}
    direction = {
        name: torch.randn(weight.shape, generator=generator, dtype=weight.dtype) for name, weight in weights.items()
    }
    got = sum(float((gradients[name] * direction[name]).sum()) for name in weights)

    def loss_at(step):
        with torch.no_grad():
            for name, weight in weights.items():
                weight.copy_(start[name] + step * direction[name])
        value = loss(potential, batch, edges).item()
        with torch.no_grad():
            for name, weight in weights.items():
                weight.copy_(start[name])
        return value

    step = 5e-5
    wanted = sum(weight * loss_at(k * step) for k, weight in oracles.STENCIL.items()) / step
    assert abs(got - wanted) < 1e-6 * abs(wanted)
