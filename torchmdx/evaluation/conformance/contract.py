"""Checks of the requirements of training, checkpoints and captured steps."""

from __future__ import annotations

import copy
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import torch
from torch import Tensor

from torchmdx.checkpoints.save_load import load, save
from torchmdx.evaluation.check_structures import Case, difference, largest
from torchmdx.evaluation.derivatives import Result, differentiate, evaluate
from torchmdx.models.potential import Potential
from torchmdx.neighbors.brute_force import brute_force
from torchmdx.neighbors.edges import Edges, from_lists
from torchmdx.step.captured_step import CapturedStep
from torchmdx.structures.system import Batch, System

Tensors = TypeVar("Tensors", Batch, Edges)
# Number of empty slots in a padded list.
EMPTY = 37
# Step of finite differences in the weights, along the gradient.
STEP = 1e-5


def answers(case: Case) -> float:
    """Returns 0. Raises ValueError if energies have a wrong shape or are not finite, or all forces are 0."""
    result = evaluate(case.potential, case.molecule)
    shape = [case.molecule.num_atoms]
    if list(result.energies.shape) != shape:
        raise ValueError(f"energies must have the shape {shape}, got {list(result.energies.shape)}")
    if not bool(torch.isfinite(result.energies).all()):
        raise ValueError(f"energies must be finite, got {result.energies.tolist()}")
    return 0.0 * case.scale  # raises if all forces are 0


def padded(case: Case) -> float:
    """Compares a neighbour list without empty slots and one with."""
    batch = Batch.from_systems([case.molecule, case.crystal])
    full = brute_force(batch, case.potential.search_cutoff(batch)).trimmed()
    room = from_lists(full.target, full.source, full.shifts, full.num_atoms, len(full.target) + EMPTY)
    short, long = (evaluate(case.potential, batch, edges, stress=True) for edges in (full, room))
    assert short.stress is not None
    assert long.stress is not None
    stress = (short.stress - long.stress)[1].abs().max() / case.scale
    return largest([torch.tensor(difference(short, long, case.scale), dtype=torch.float64, device="cpu"), stress])


def reads_nothing(case: Case) -> float:
    """Computes forces with tensors on the meta device: reading a value raises, as does a constant on the CPU."""
    potential = case.potential.with_priors([])
    batch = Batch.of(case.molecule)
    edges = brute_force(batch, potential.search_cutoff(batch))
    on_meta = copy.deepcopy(potential).to("meta")
    result = differentiate(on_meta, _without_values(batch), _without_values(edges))
    assert result.forces is not None
    return 0.0


def _without_values(of: Tensors) -> Tensors:
    tensors = {field.name: getattr(of, field.name) for field in fields(of)}
    return replace(of, **{name: value.to("meta") for name, value in tensors.items() if isinstance(value, Tensor)})


def single_precision(case: Case) -> float:
    """Compares the forces of a copy in float32."""
    single = evaluate(copy.deepcopy(case.potential).float(), case.molecule)
    assert single.forces is not None
    return float((single.forces.double() - case.forces_of(case.molecule)).abs().max()) / case.scale


def second_derivatives(case: Case) -> float:
    """Compares the gradient of Σ F² by the weights with finite differences along it, relative to its norm."""
    potential = copy.deepcopy(case.potential)
    weights = [weight.requires_grad_() for weight in potential.parameters()]
    loss = _squared_forces(potential, case.molecule)
    found = torch.autograd.grad(loss, weights, allow_unused=True)
    gradients = [torch.zeros_like(w) if g is None else g for w, g in zip(weights, found, strict=True)]
    size = float(torch.stack([(gradient**2).sum() for gradient in gradients]).sum().sqrt())
    if not size > 0:
        raise ValueError(f"the gradient of a loss on forces must not be 0, got {size}")
    sides = []
    for sign in (1, -1):
        with torch.no_grad():
            shifted = copy.deepcopy(potential)
            for weight, gradient in zip(shifted.parameters(), gradients, strict=True):
                weight.add_(gradient, alpha=sign * STEP / size)
        sides.append(float(_squared_forces(shifted, case.molecule).detach()))
    return abs((sides[0] - sides[1]) / (2 * STEP) - size) / size


def _squared_forces(potential: Potential, system: System) -> Tensor:
    forces = evaluate(potential, system, create_graph=True).forces
    assert forces is not None
    return (forces**2).sum()


def saved_and_loaded(case: Case) -> float:
    """Compares results before saving and after loading."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "potential.safetensors"
        save(case.potential, file)
        again = load(file)
    return difference(evaluate(again, case.molecule), evaluate(case.potential, case.molecule), case.scale)


def captured(case: Case) -> float:
    """Compares forces of a float32 step at changing positions with the exact model, for molecule and crystal."""
    mode = "graph" if case.device.type == "cuda" else "eager"
    potential = copy.deepcopy(case.potential).to(device=case.device, dtype=torch.float32)
    errors = []
    for system in (case.molecule, case.crystal):
        step = CapturedStep(potential, system, mode=mode, skin=0.3)
        for number in range(4):
            seeded: dict[str, Any] = dict(generator=torch.Generator().manual_seed(number), device="cpu")
            noise = torch.randn(system.positions.shape, dtype=torch.float32, **seeded).double()
            displaced = replace(system, positions=system.positions + 0.05 * noise)
            exact: Result = evaluate(case.potential, displaced)
            assert exact.forces is not None
            found = torch.from_numpy(step(displaced.positions.numpy()).forces).double()
            errors.append((found - exact.forces).abs().max() / case.scale)
    return largest(errors)
