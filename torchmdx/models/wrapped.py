"""A module of the user's own as the network of a potential: what it is given, and what it may return.

`torchmdx.models.wrapping.wrap` makes such potentials; docs/wrap_a_model.md describes them.
"""

from __future__ import annotations

import copy
import inspect
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchmdx.neighbors.edges import Edges
from torchmdx.structures.system import Batch
from torchmdx.structures.system_fields import LAST_ELEMENT

# What a module may ask for, by the names of the arguments of its `forward`.
ARGUMENTS = {
    "vectors": "[E,3] Å, from target to source, with gradients",
    "edge_index": "[2,E] int64: sources, then targets",
    "positions": "[N,3] Å: zeros, since `shifts` hold the whole vectors",
    "shifts": "[E,3] Å, with positions[source] - positions[target] + shifts = vectors",
    "atomic_numbers": "[N] int64",
    "system_index": "[N] int64, ascending",
    "num_systems": "S, an int",
    "charge": "[S] e, total charges",
}
GEOMETRY = ("vectors", "shifts")
ENERGIES = ("atoms", "systems")

# Modules that were wrapped in this process, by name: loading a file never makes one.
WRAPPED: dict[str, nn.Module] = {}


@dataclass(frozen=True, kw_only=True)
class WrappedConfig:
    """What a checkpoint stores about a wrapped module: its name, not its code."""

    name: str
    cutoff: float  # Å
    elements: tuple[int, ...]
    energies: str = "atoms"  # what it returns energies of
    charges: bool = False  # whether it returns charges too
    max_z: int = LAST_ELEMENT

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and self.name.isidentifier()):
            raise ValueError(f"name must consist of letters, digits and _, got {self.name!r}")
        if not 0 < self.cutoff < float("inf"):
            raise ValueError(f"cutoff must be > 0 Å and finite, got {self.cutoff}")
        good = [type(z) is int and 1 <= z <= LAST_ELEMENT for z in self.elements]
        if not good or not all(good) or len(set(self.elements)) < len(good):
            raise ValueError(f"elements must be different atomic numbers from 1 to 118, got {self.elements}")
        if self.energies not in ENERGIES:
            raise ValueError(f"energies must be one of {', '.join(ENERGIES)}, got {self.energies!r}")
        if self.max_z != max(self.elements):
            object.__setattr__(self, "max_z", max(self.elements))


def new_module(config: WrappedConfig) -> WrappedNetwork:
    """The network of a configuration, with the weights that the wrapped module has now."""
    if config.name not in WRAPPED:
        raise ValueError(
            f"the potential needs the module that was wrapped as {config.name!r}: wrap one like it first, "
            f"torchmdx.wrap(module, name={config.name!r}, cutoff={config.cutoff}, elements={config.elements}). "
            "Loading a file never imports code"
        )
    return copy.deepcopy(WrappedNetwork(config, WRAPPED[config.name]))


class WrappedNetwork(nn.Module):
    """Energies [N,1] of atoms, and charges [N,1] or None, from a module that computes energies."""

    cutoff: Tensor

    def __init__(self, config: WrappedConfig, module: nn.Module) -> None:
        super().__init__()
        self.config, self.module = config, module
        self.asked = arguments_of(module)
        # A floating tensor whatever the module has, so that the potential has a dtype.
        self.register_buffer("cutoff", torch.tensor(float(config.cutoff), dtype=_dtype_of(module)))

    def __deepcopy__(self, memo: dict[int, Any]) -> WrappedNetwork:
        for part in _scripted(self.module):
            memo[id(part)] = _copied(part)
        new = memo[id(self)] = self.__new__(type(self))
        new.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return new

    def forward(self, edges: Edges, vectors: Tensor, batch: Batch) -> tuple[Tensor, Tensor | None]:
        near = self._within(vectors)
        index = edges.source.long(), edges.target.long()
        make: dict[str, Callable[[], Any]] = {
            "vectors": lambda: near,
            "edge_index": lambda: torch.stack(index),
            "positions": lambda: vectors.new_zeros(batch.num_atoms, 3),
            "shifts": lambda: near,
            "atomic_numbers": lambda: batch.atomic_numbers,
            "system_index": lambda: batch.system_index,
            "num_systems": lambda: batch.num_systems,
            "charge": lambda: batch.charge.to(vectors.dtype),
        }
        found = self.module(**{name: make[name]() for name in self.asked})
        energies, charges = self._parts(found, batch)
        if self.config.energies == "systems":
            energies = (energies / batch.counts().clamp(min=1)).index_select(0, batch.system_index)
        return energies[:, None], None if charges is None else charges[:, None]

    def _within(self, vectors: Tensor) -> Tensor:
        """Vectors, those of the cutoff or longer shortened to it, without a gradient: empty slots are 10⁶ Å long.

        They stay longer by more than a module's rounding of their squares, so that none of them is inside.
        """
        fixed = vectors.detach()
        length = torch.linalg.vector_norm(fixed, dim=-1, keepdim=True)
        end = self.config.cutoff * (1 + 8 * torch.finfo(vectors.dtype).eps)
        return torch.where(length < self.config.cutoff, vectors, fixed * (end / length))

    def _parts(self, found: Any, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """(energies, charges) of what the module returned. Raises ValueError or TypeError for something else."""
        wanted = "energies and charges" if self.config.charges else "energies"
        several = isinstance(found, (tuple, list))
        parts = list(found) if several else [found]
        if len(parts) != 1 + self.config.charges or not all(isinstance(part, Tensor) for part in parts):
            got = f"{len(parts)} values" if several else f"a {type(found).__name__}"
            raise TypeError(f"{self.config.name} must return {wanted} as tensors, got {got}")
        count = batch.num_atoms if self.config.energies == "atoms" else batch.num_systems
        shaped = [
            _flat(f"{what} of {self.config.name}", part, size)
            for what, part, size in zip(("energies", "charges"), parts, (count, batch.num_atoms), strict=False)
        ]
        return shaped[0], shaped[1] if self.config.charges else None


class Energies(nn.Module):
    """The head of a wrapped module, whose features are energies [N,1] already."""

    def forward(self, energies: Tensor) -> Tensor:
        return energies.squeeze(-1)


def arguments_of(module: nn.Module) -> tuple[str, ...]:
    """The names that a module's `forward` asks for. Raises ValueError if it needs others or sees no geometry."""
    if isinstance(module, torch.jit.ScriptModule):
        forward: Any = module.forward
        every = [(a.name, a.has_default_value()) for a in forward.schema.arguments if a.name != "self"]
    else:
        parameters = inspect.signature(module.forward).parameters.values()
        named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        every = [(p.name, p.default is not p.empty) for p in named]
    unknown = [name for name, has_default in every if name not in ARGUMENTS and not has_default]
    asked = tuple(name for name, _ in every if name in ARGUMENTS)
    if unknown:
        raise ValueError(
            f"the arguments of forward must be among {', '.join(ARGUMENTS)}, got {', '.join(unknown)}: write a module "
            "around yours that takes some of these"
        )
    if not any(name in asked for name in GEOMETRY):
        raise ValueError(f"forward must take the geometry, vectors or shifts, got {', '.join(asked) or 'nothing'}")
    return asked


def _scripted(module: nn.Module) -> Iterator[torch.jit.ScriptModule]:
    """The TorchScript modules in a module that are not part of another."""
    if isinstance(module, torch.jit.ScriptModule):
        yield module
        return
    for part in module.children():
        yield from _scripted(part)


def _copied(module: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    """A copy whose weights are leaves, which those of copy.deepcopy are not."""
    file = io.BytesIO()
    torch.jit.save(module, file)
    file.seek(0)
    return torch.jit.load(file)


def _flat(what: str, values: Tensor, size: int) -> Tensor:
    if values.shape == (size, 1):
        values = values.squeeze(-1)
    if values.shape != (size,):
        raise ValueError(f"the {what} must have shape [{size}] or [{size}, 1], got {list(values.shape)}")
    return values


def _dtype_of(module: nn.Module) -> torch.dtype:
    held = [t.dtype for t in (*module.parameters(), *module.buffers()) if t.dtype in (torch.float32, torch.float64)]
    return held[0] if held else torch.float32
