"""TrainStep: from a batch to changed weights, in fixed shapes and without reading the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from torchmdx.forces import Result, differentiate
from torchmdx.models.potential import Potential
from torchmdx.neighbors.search import EdgeSearch
from torchmdx.training.config import LossSection, OptimizerSection
from torchmdx.training.labelled import LabelledBatch
from torchmdx.training.loss import total, used_terms, weighted_sum
from torchmdx.training.optimizer import AdamW, FlatParameters

# What a step returns: losses, the gradient's norm, mean absolute errors, and, where not 0, that a list
# overflowed and that a process was asked to stop.
VALUES = (
    "loss",
    "energy_loss",
    "forces_loss",
    "stress_loss",
    "gradient_norm",
    "energy",
    "forces",
    "stress",
    "overflow",
    "stop",
)
NORM, OVERFLOW, STOP = (VALUES.index(name) for name in ("gradient_norm", "overflow", "stop"))


def training_model(potential: Potential) -> Potential:
    """The potential as it is trained: the same weights, and whatever way to compute them is fastest."""
    return potential


@dataclass(eq=False)
class Slot:
    """Buffers of one shape: the batch that steps read, and its neighbour list."""

    labelled: LabelledBatch
    search: EdgeSearch
    layout: tuple[bytes, bytes]


class TrainStep:
    """One step after another: `step(labelled)` is load, compute, reduce, apply.

    load copies a batch into the buffers of its shape and may look at it; compute and apply read nothing on the host
    and keep every shape and buffer, so that a CUDA graph can hold them. reduce sums flat.buffer over processes.

    Where a neighbour list has overflowed, or the gradient is not finite, in any process, apply changes nothing; who
    reads the values sees it, calls `grow` for the first, and does the step again.
    """

    def __init__(
        self,
        potential: Potential,
        loss: LossSection,
        optimizer: OptimizerSection,
        *,
        bf16: bool = False,
        reduce: Callable[[Tensor], None] | None = None,
        capacities: dict[str, int] | None = None,
    ) -> None:
        self.potential, self.loss, self.bf16, self.reduce = potential, loss, bf16, reduce
        self.terms = used_terms(loss)
        named = [(name, weight) for name, weight in potential.named_parameters() if weight.requires_grad]
        self.flat = FlatParameters(named, extra=len(VALUES))
        self.optimizer = AdamW(self.flat, potential, optimizer)
        self.model = training_model(potential)  # after the weights have moved
        self.weights = self.flat.values.new_zeros(3)
        self.stop = self.flat.values.new_zeros(())
        self._capacities = dict(capacities or {})
        self._slots: dict[str, Slot] = {}

    def __call__(self, labelled: LabelledBatch) -> Tensor:
        """Values of VALUES, on the device."""
        slot = self.load(labelled)
        self.compute(slot)
        if self.reduce is not None:
            self.reduce(self.flat.buffer)
        return self.apply()

    def set_rates(self, learning_rate: float, weights: Sequence[float]) -> None:
        """Learning rate and the weights of the terms, for the steps that follow."""
        self.optimizer.learning_rate.fill_(learning_rate)
        for k, weight in enumerate(weights):
            self.weights[k].fill_(weight)

    def load(self, labelled: LabelledBatch) -> Slot:
        """The slot of its shape, holding the batch."""
        key = _key(labelled)
        layout = labelled.layout
        slot = self._slots.get(key)
        if slot is None:
            own = labelled.map(Tensor.clone)
            search = EdgeSearch(self.potential.cutoff)
            search.allocate(own.batch, self._capacities.get(key))
            slot = self._slots[key] = Slot(own, search, layout)
            return slot
        for name, buffer in slot.labelled.tensors().items():
            buffer.copy_(labelled.tensors()[name])
        if slot.layout != layout:
            slot.search.assign(slot.labelled.batch)
            slot.layout = layout
        return slot

    def compute(self, slot: Slot) -> None:
        """Gradient and values of the slot's batch into flat.buffer."""
        with torch.enable_grad():
            result, overflow = self._predict(slot, create_graph=True)
            values, errors = self._losses(result, slot.labelled)
            loss = total(values, self.weights)
            gradients = torch.autograd.grad(loss, self.flat.parameters, allow_unused=True)
        self.flat.set_gradients(gradients)
        self.flat.extra.copy_(self._values(loss, values, errors, overflow))

    def apply(self) -> Tensor:
        """The optimizer's step with what flat.buffer holds; the values, with the gradient's norm."""
        values = self.flat.extra.clone()
        good = (values[OVERFLOW] == 0) & torch.isfinite(values[0])
        values[NORM].copy_(self.optimizer.apply(good))
        return values

    def evaluate(self, labelled: LabelledBatch) -> Tensor:
        """Values of a batch, without a step; the norm is 0."""
        slot = self.load(labelled)
        result, overflow = self._predict(slot, create_graph=False)
        with torch.no_grad():
            values, errors = self._losses(result, slot.labelled)
            found = self._values(total(values, self.weights), values, errors, overflow)
        if self.reduce is not None:
            self.reduce(found)
        return found

    def grow(self, labelled: LabelledBatch) -> None:
        """Room for the batch of this shape that overflowed, if it did here. Reads the device."""
        search = self._slots[_key(labelled)].search
        if bool(search.edges.overflow):
            search.grow()

    def capacities(self) -> dict[str, int]:
        """Slots of each shape's list. Rounding depends on them, so that a resumed run takes them over."""
        return self._capacities | {key: slot.search.capacity for key, slot in self._slots.items()}

    def _predict(self, slot: Slot, create_graph: bool) -> tuple[Result, Tensor]:
        batch = slot.labelled.batch
        edges = slot.search.update(batch.positions, batch.cell)
        with self._mixed(batch.positions.device):
            result = differentiate(
                self.model,
                batch,
                edges,
                forces="forces" in self.terms,
                stress="stress" in self.terms,
                create_graph=create_graph,
            )
        return result, edges.overflow

    def _mixed(self, device: torch.device) -> AbstractContextManager[object]:
        return torch.autocast(device.type, torch.bfloat16, cache_enabled=False) if self.bf16 else nullcontext()

    def _losses(self, result: Result, labelled: LabelledBatch) -> tuple[list[Tensor], list[Tensor]]:
        """Losses and mean absolute errors of the three terms; 0 for those left out."""
        dtype = labelled.forces.dtype
        zero = labelled.forces.new_zeros(())
        found = {}
        if "energy" in self.terms:
            # Total energies are long numbers, their errors short ones: subtracted in float64.
            errors = (result.energy - labelled.energy).to(dtype) / labelled.count
            found["energy"] = weighted_sum(errors, labelled.energy_weight, self.loss.energy)
        if result.forces is not None:
            found["forces"] = weighted_sum(result.forces - labelled.forces, labelled.force_weight, self.loss.forces)
        if result.stress is not None:
            found["stress"] = weighted_sum(result.stress - labelled.stress, labelled.stress_weight, self.loss.stress)
        pairs = [found.get(name, (zero, zero)) for name in ("energy", "forces", "stress")]
        return [loss for loss, _ in pairs], [error for _, error in pairs]

    def _values(self, loss: Tensor, values: list[Tensor], errors: list[Tensor], overflow: Tensor) -> Tensor:
        rest = torch.zeros_like(loss), *errors, overflow.to(loss.dtype), self.stop
        return torch.stack([loss, *values, *rest]).detach()


def _key(labelled: LabelledBatch) -> str:
    return "{}x{}".format(*labelled.shape)
