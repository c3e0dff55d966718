"""Checks of what training, files and captured steps ask of a model."""

from __future__ import annotations

import copy
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import torch
from torch import Tensor

from torchmdx.checkpoints.save_load import load, save
from torchmdx.conformance.structures import Case, apart, largest
from torchmdx.evaluate import Result, differentiate, evaluate
from torchmdx.models.potential import Potential
from torchmdx.neighbors.brute_force import brute_force
from torchmdx.neighbors.edges import Edges, from_lists
from torchmdx.step.captured_step import CapturedStep
from torchmdx.system import Batch, System

Tensors = TypeVar("Tensors", Batch, Edges)
# Empty slots of a padded list.
EMPTY = 37
# Of differences in weights, along the gradient.
STEP = 1e-5


def answers(case: Case) -> float:
    """0, or ValueError that says what is wrong with the answer."""
    result = evaluate(case.potential, case.molecule)
    wanted = [case.molecule.num_atoms]
    if list(result.energies.shape) != wanted:
        raise ValueError(f"energies must have the shape {wanted}, got {list(result.energies.shape)}")
    if not bool(torch.isfinite(result.energies).all()):
        raise ValueError(f"energies must be finite, got {result.energies.tolist()}")
    return 0.0 * case.scale  # which raises where there are no forces


def padded(case: Case) -> float:
    """A list that is just long enough, and one with empty slots."""
    batch = Batch.from_systems([case.molecule, case.crystal])
    full = brute_force(batch, case.potential.search_cutoff(batch)).trimmed()
    room = from_lists(full.target, full.source, full.shifts, full.num_atoms, len(full.target) + EMPTY)
    short, long = (evaluate(case.potential, batch, edges, stress=True) for edges in (full, room))
    assert short.stress is not None
    assert long.stress is not None
    stress = (short.stress - long.stress)[1].abs().max() / case.scale
    return largest([torch.tensor(apart(short, long, case.scale)), stress])


def reads_nothing(case: Case) -> float:
    """Forces by tensors without values: whatever needs a value raises, as does a constant left on the CPU."""
    potential = case.potential.with_priors([])
    batch = Batch.of(case.molecule)
    edges = brute_force(batch, potential.search_cutoff(batch))
    blank = copy.deepcopy(potential).to("meta")
    result = differentiate(blank, _without_values(batch), _without_values(edges))
    assert result.forces is not None
    return 0.0


def _without_values(of: Tensors) -> Tensors:
    tensors = {field.name: getattr(of, field.name) for field in fields(of)}
    return replace(of, **{name: value.to("meta") for name, value in tensors.items() if isinstance(value, Tensor)})


def single_precision(case: Case) -> float:
    """Forces of the float32 copy."""
    single = evaluate(copy.deepcopy(case.potential).float(), case.molecule)
    assert single.forces is not None
    return float((single.forces.double() - case.forces_of(case.molecule)).abs().max()) / case.scale


def second_derivatives(case: Case) -> float:
    """The gradient of Σ F² by the weights, against differences along it, relative to its size."""
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
    """Written, and read from the file."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "potential.safetensors"
        save(case.potential, file)
        again = load(file)
    return apart(evaluate(again, case.molecule), evaluate(case.potential, case.molecule), case.scale)


def captured(case: Case) -> float:
    """Forces of a step in float32, at places that change, against the exact model; molecule and crystal."""
    mode = "graph" if case.device.type == "cuda" else "eager"
    potential = copy.deepcopy(case.potential).to(device=case.device, dtype=torch.float32)
    errors = []
    for system in (case.molecule, case.crystal):
        step = CapturedStep(potential, system, mode=mode, skin=0.3)
        for number in range(4):
            noise = torch.randn(system.positions.shape, generator=torch.Generator().manual_seed(number)).double()
            place = replace(system, positions=system.positions + 0.05 * noise)
            wanted: Result = evaluate(case.potential, place)
            assert wanted.forces is not None
            got = torch.from_numpy(step(place.positions.numpy()).forces).double()
            errors.append((got - wanted.forces).abs().max() / case.scale)
    return largest(errors)
