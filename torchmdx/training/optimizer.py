"""AdamW over one flat vector of weights, with clipping, an average of weights, and steps that can be left out.

All state is on the device and nothing is read on the host, so that a step can be recorded and replayed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torchmdx.training.config import OptimizerSection

# Weights begin at multiples of this many numbers, so that each is aligned for vector loads.
ALIGNED = 64


class FlatParameters:
    """Parameters, moved into one vector [P] that they are views of; gradients are gathered into another.

    extra: numbers behind the gradients, for what is summed over processes with them.
    """

    def __init__(self, named: Sequence[tuple[str, nn.Parameter]], extra: int = 0) -> None:
        if not named:
            raise ValueError("a training needs weights that may change, got none: everything is frozen")
        self.named = list(named)
        first = named[0][1]
        starts, size = [], 0
        for _, parameter in named:
            starts.append(size)
            size += -(-parameter.numel() // ALIGNED) * ALIGNED
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
        """Gathers gradients in the order of the parameters; None is zero."""
        there = [(own, got) for own, got in zip(self._gradients, gradients, strict=True) if got is not None]
        if len(there) < len(gradients):
            self.gradient.zero_()
        torch._foreach_copy_([own for own, _ in there], [got for _, got in there])

    def mask(self, wanted: Sequence[bool]) -> Tensor:
        """[P]: 1 for the numbers of the parameters that are wanted, else 0."""
        mask = torch.zeros_like(self.values)
        for start, (_, parameter), flag in zip(self.starts, self.named, wanted, strict=True):
            self.view(mask, start, parameter).fill_(float(flag))
        return mask


def decays(root: nn.Module, parameters: Sequence[nn.Parameter]) -> list[bool]:
    """Which parameters decay: weights of linear maps; not biases, embeddings, norms, or numbers of the radial basis."""
    decaying = {
        id(weight)
        for module in root.modules()
        if not isinstance(module, (nn.Embedding, nn.LayerNorm))
        for weight in module.parameters(recurse=False)
        if weight.dim() >= 2
    }
    return [id(parameter) in decaying for parameter in parameters]


class AdamW:
    """AdamW with decoupled decay (Loshchilov & Hutter, arXiv 1711.05101), and the average of the weights.

    learning_rate [] is a tensor, set between steps. `apply` cuts the gradient to clip_norm and takes the step, or,
    where `good` is false, leaves weights, moments, average and the count of steps as they are.
    """

    def __init__(self, flat: FlatParameters, root: nn.Module, settings: OptimizerSection) -> None:
        self.flat, self.settings = flat, settings
        values = flat.values
        self.learning_rate = values.new_zeros(())
        self.first, self.second = torch.zeros_like(values), torch.zeros_like(values)
        self.average = values.clone()
        # In float64: float32 counts to 16.7 million, but 0.999^t of it is coarse long before.
        self.steps = torch.zeros((), dtype=torch.float64, device=values.device)
        self.decay = settings.weight_decay * flat.mask(decays(root, flat.parameters))
        self.fused = values.device.type == "cuda" and importlib.util.find_spec("triton") is not None
        self._numbers: Tensor | None = None

    def apply(self, good: Tensor) -> Tensor:
        """One step with flat.gradient; returns the gradient's norm []. good [] bool: whether to take it at all."""
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
        # Early averages are of few weights, so that they are not of the random ones of the beginning.
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
        """What `load_state` needs for going on exactly."""
        return {
            "values": self.flat.values,
            "first": self.first,
            "second": self.second,
            "average": self.average,
            "steps": self.steps,
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Raises ValueError for the state of other weights."""
        for name, own in self.state().items():
            if name not in state or state[name].shape != own.shape or state[name].dtype != own.dtype:
                got = f"{list(state[name].shape)} {state[name].dtype}" if name in state else "nothing"
                raise ValueError(
                    f"{name} of the checkpoint must be {list(own.shape)} {own.dtype} for this configuration, got {got}"
                )
        for name, own in self.state().items():
            own.copy_(state[name])
