"""`wrap`: any trained torch module as a potential."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from torchmdx.models.potential import Potential
from torchmdx.models.wrapped import WRAPPED, WrappedConfig, WrappedNetwork
from torchmdx.neighbors.edges import from_lists
from torchmdx.structures.system import Batch, System

# The distance of two atoms in the trial, in cutoffs.
SPACING = 0.3
# Components of the vectors of empty slots, Å.
EMPTY_SLOT = 1e6
# What edges at the cutoff may change of an energy, eV, per eV of what near ones change; and a repetition.
MOST_AT_CUTOFF, MOST_REPEATED = 1e-3, 1e-5


def wrap(
    module: nn.Module,
    *,
    cutoff: float,
    elements: Iterable[int],
    energies: str = "atoms",
    charges: bool = False,
    name: str | None = None,
    energy_unit: float = 1.0,
) -> Potential:
    """A potential that evaluates a trained module of your own, for everything that takes potentials.

    Tries the module on three atoms. `torchmdx.evaluation.conformance.check` tests more.

    Args:
        module: The parameters of its forward name what it needs: `vectors`, `edge_index`, `positions`, `shifts`,
            `atomic_numbers`, `system_index`, `num_systems`, `charge` (torchmdx.models.wrapped.ARGUMENTS says what each
            is). It returns energies, or energies and charges [N] if `charges`. TorchScript modules are accepted.
        cutoff: Å; pairs that are farther apart must contribute nothing.
        elements: Atomic numbers that it knows.
        energies: Whether it returns energies of "atoms" [N] or of "systems" [S].
        name: What a checkpoint calls the module; None for the name of its class. `load` needs a module that was wrapped
            under this name in the same process, since loading never runs code from a file.
        energy_unit: eV in a unit of its energies, as torchmdx.structures.units.HARTREE.

    Raises:
        TypeError: If it takes or returns something else, if energies or gradients are not finite, do not depend on the
            geometry, or change from call to call, and if pairs at the cutoff contribute.
        ValueError: If it takes or returns something else, if energies or gradients are not finite, do not depend on the
            geometry, or change from call to call, and if pairs at the cutoff contribute.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"module must be a torch.nn.Module, got a {type(module).__name__}")
    chosen = tuple(int(z) for z in elements)
    own = getattr(module, "original_name", type(module).__name__)
    config = WrappedConfig(
        name=own if name is None else name, cutoff=float(cutoff), elements=chosen, energies=energies, charges=charges
    )
    network = WrappedNetwork(config, module)
    _try(network)
    WRAPPED[config.name] = module
    potential = Potential(config, network=network)
    potential.scale.fill_(energy_unit)
    potential.card = replace(potential.card, elements=chosen)
    return potential


def _try(network: WrappedNetwork) -> None:
    """Evaluates two neighbours and a lone atom of another system, with empty slots and without."""
    name, cutoff = network.config.name, network.config.cutoff
    held = (*network.module.parameters(), *network.module.buffers())
    network.to(held[0].device if held else "cpu").eval()
    batch = _trial(network)
    apart = network.cutoff.new_tensor([[SPACING * cutoff, 0.0, 0.0]])
    near = torch.cat([apart, -apart])
    empty = near.new_full((2, 3), EMPTY_SLOT)
    both = [0, 1, 2, 2], torch.cat([near, empty])
    trials = [([2, 2], empty), both, ([0, 1], near), both]
    results = [_energy(network, batch, targets, vectors) for targets, vectors in trials]
    found = [float(energies.sum()) for energies, _ in results]
    if not all(math.isfinite(e) for e in found):
        raise ValueError(f"the energies of {name} must be finite, got {found[1]} for two atoms and {found[0]} for none")
    gradient = results[1][1]
    if gradient is None or not bool(gradient.any()):
        raise ValueError(f"the energies of {name} must depend on the geometry, with gradients, got a gradient of 0")
    if not bool(torch.isfinite(gradient).all()):
        raise ValueError(
            f"the gradient of {name} must be finite, also for pairs at the cutoff, got {gradient.tolist()}"
        )
    rounding = MOST_REPEATED * max(abs(e) for e in found)
    if abs(found[1] - found[3]) > rounding:
        raise ValueError(f"{name} must return the same energy for the same atoms, got {found[1]} and {found[3]}")
    if abs(found[1] - found[2]) > rounding + MOST_AT_CUTOFF * abs(found[1] - found[0]):
        raise ValueError(
            f"pairs at the cutoff, {cutoff} Å, must contribute nothing to the energies of {name}, got "
            f"{found[1] - found[2]:.3g}: give its own cutoff, and multiply every contribution of a pair by a function "
            "that is 0 there"
        )


def _trial(network: WrappedNetwork) -> Batch:
    """Three atoms, two in the first system; their positions are of no use, since a module gets vectors."""
    some = (network.config.elements * 3)[:3]
    pair = System.create(np.zeros((2, 3)), some[:2], dtype=network.cutoff.dtype)
    lone = System.create(np.zeros((1, 3)), some[2:], dtype=network.cutoff.dtype)
    return Batch.from_systems([pair, lone]).to(network.cutoff.device)


def _energy(network: WrappedNetwork, batch: Batch, targets: list[int], vectors: Tensor) -> tuple[Tensor, Tensor | None]:
    """(energies, gradient in the vectors) of the pair 0 and 1 and of empty slots, which belong to atom 2."""
    target = torch.tensor(targets, device=vectors.device)
    source = torch.where(target < 2, 1 - target, target)
    shifts = target.new_zeros(len(target), 3)
    edges = from_lists(target, source, shifts, batch.num_atoms, len(target))
    vectors = vectors.clone().requires_grad_(True)
    energies = network(edges, vectors, batch)[0]
    if not energies.requires_grad:
        return energies.detach(), None
    (gradient,) = torch.autograd.grad(energies.sum(), vectors, allow_unused=True)
    return energies.detach(), gradient
