"""AdamW over one flat vector of weights, with clipping, averaged weights, and steps that can be skipped on the device.

All state is on the device and nothing is read on the host, so that a step can be captured and replayed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from torchmdx.training.config import OptimizerSection

# Parameters begin at multiples of this many elements, for aligned vector loads.
ALIGNMENT = 64


class FlatParameters:
    """Parameters, moved into one vector [P] of which they become views; gradients are gathered in another vector.

    Args:
        extra: Elements after the gradients, for values that are summed over processes with them.
    """

    def __init__(self, named: Sequence[tuple[str, nn.Parameter]], extra: int = 0) -> None:
        if not named:
            raise ValueError("training needs at least one trainable weight, got none: all are frozen")
        self.named = list(named)
        first = named[0][1]
        starts, size = [], 0
        for _, parameter in named:
            starts.append(size)
            size += -(-parameter.numel() // ALIGNMENT) * ALIGNMENT
        self.values = first.new_zeros(size)
        self.buffer = first.new_zeros(size + extra)
        self.gradient, self.extra = self.buffer[:size], self.buffer[size:]
        self._gradients = []
        for start, (_, parameter) in zip(starts, named, strict=True):
            self.view(self.values, start, parameter).copy_(parameter.detach())
            parameter.data = self.view(self.values, start, parameter)
            self._gradients.append(self.view(self.gradient, start, parameter))
        self.starts = starts

    @staticmethod
    def view(flat: Tensor, start: int, parameter: Tensor) -> Tensor:
        return flat[start : start + parameter.numel()].view(parameter.shape)

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [parameter for _, parameter in self.named]

    def set_gradients(self, gradients: Sequence[Tensor | None]) -> None:
        """Gathers gradients, in the order of the parameters; None is zero."""
        found = [(own, got) for own, got in zip(self._gradients, gradients, strict=True) if got is not None]
        if len(found) < len(gradients):
            self.gradient.zero_()
        torch._foreach_copy_([own for own, _ in found], [got for _, got in found])

    def mask(self, selected: Sequence[bool]) -> Tensor:
        """[P]: 1 for the elements of the selected parameters, else 0."""
        mask = torch.zeros_like(self.values)
        for start, (_, parameter), flag in zip(self.starts, self.named, selected, strict=True):
            self.view(mask, start, parameter).fill_(float(flag))
        return mask


def decays(root: nn.Module, parameters: Sequence[nn.Parameter]) -> list[bool]:
    """Which parameters have weight decay: weights of linear maps; not biases, embeddings, norms or the radial basis."""
    decaying = {
        id(weight)
        for module in root.modules()
        if not isinstance(module, (nn.Embedding, nn.LayerNorm))
        for weight in module.parameters(recurse=False)
        if weight.dim() >= 2
    }
    return [id(parameter) in decaying for parameter in parameters]


class AdamW:
    """AdamW with decoupled decay (Loshchilov & Hutter, arXiv 1711.05101), and averaged weights.

    learning_rate [] is a tensor, set between steps. `apply` clips the gradient to clip_norm and takes the step; if
    `good` is false, it leaves weights, moments, average and step count unchanged.
    """

    def __init__(self, flat: FlatParameters, root: nn.Module, settings: OptimizerSection) -> None:
        self.flat, self.settings = flat, settings
        values = flat.values
        self.learning_rate = values.new_zeros(())
        self.first, self.second = torch.zeros_like(values), torch.zeros_like(values)
        self.average = values.clone()
        # float64, because 0.999^t of a float32 count is inaccurate.
        self.steps = torch.zeros((), dtype=torch.float64, device=values.device)
        self.decay = settings.weight_decay * flat.mask(decays(root, flat.parameters))
        self.fused = values.device.type == "cuda" and importlib.util.find_spec("triton") is not None
        self._numbers: Tensor | None = None

    def apply(self, good: Tensor) -> Tensor:
        """Takes one step with flat.gradient, if good [] bool is true; returns the norm [] of the gradient."""
        s, flat = self.settings, self.flat
        gradient = flat.gradient
        norm = torch.linalg.vector_norm(gradient)
        if self.fused:
            self._apply_fused(norm, good)
            return norm
        good = good & torch.isfinite(norm)
        if s.clip_norm is not None:
            gradient = gradient * (s.clip_norm / (norm + 1e-12)).clamp(max=1.0)
        steps = self.steps + 1
        first = torch.lerp(self.first, gradient, 1 - s.beta1)
        second = s.beta2 * self.second + (1 - s.beta2) * gradient * gradient
        dtype = gradient.dtype
        of_first = (1 - s.beta1**steps).to(dtype)
        of_second = (1 - s.beta2**steps).sqrt().to(dtype)
        change = (first / of_first) / (second.sqrt() / of_second + s.epsilon)
        values = flat.values - self.learning_rate * (change + self.decay * flat.values)
        # A faster decay early on, so that the average forgets the random initial weights.
        memory = (1 - torch.clamp((1 + steps) / (10 + steps), max=s.ema_decay)).to(dtype)
        average = self.average + memory * (values - self.average)
        for old, new in (
            (self.first, first),
            (self.second, second),
            (flat.values, values),
            (self.average, average),
            (self.steps, steps),
        ):
            old.copy_(torch.where(good, new, old))
        return norm

    def _apply_fused(self, norm: Tensor, good: Tensor) -> None:
        from torchmdx.training.optimizer_kernel import adamw, settings

        s, flat = self.settings, self.flat
        if self._numbers is None:
            self._numbers = settings(s.beta1, s.beta2, s.ema_decay, s.epsilon, s.clip_norm, flat.values.device)
        adamw(
            flat.values, self.first, self.second, self.average, self.steps, gradient=flat.gradient, decay=self.decay,
            learning_rate=self.learning_rate, norm=norm, good=good, numbers=self._numbers,
            clip=s.clip_norm is not None,
        )  # fmt: skip

    def state(self) -> dict[str, Tensor]:
        """The tensors that `load_state` needs for an exact resume."""
        return {
            "values": self.flat.values,
            "first": self.first,
            "second": self.second,
            "average": self.average,
            "steps": self.steps,
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restores a state. Raises ValueError if it belongs to other weights."""
        for name, own in self.state().items():
            if name not in state or state[name].shape != own.shape or state[name].dtype != own.dtype:
                got = f"{list(state[name].shape)} {state[name].dtype}" if name in state else "nothing"
                raise ValueError(
                    f"{name} of the checkpoint must be {list(own.shape)} {own.dtype} for this configuration, got {got}"
                )
        for name, own in self.state().items():
            own.copy_(state[name])


@contextmanager
def averaged(optimizer: AdamW) -> Iterator[None]:
    """Context in which the network has its averaged weights, copied in place, so that captured steps use them."""
    values = optimizer.flat.values
    kept = values.clone()
    values.copy_(optimizer.average)
    try:
        yield
    finally:
        values.copy_(kept)
