"""The names, shapes and types of a potential's tensors, found without allocating memory for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from torchmdx.models.priors.base import PriorConfig
from torchmdx.models.registry import BUILT_IN, ModelConfig, make_head, make_network, name_of

CONSTANTS = ("scale", "shift", "reference_energies")
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
MOST_PRIORS = 16  # their tables are larger than their settings: a short text must not ask for thousands
NAMED = 5  # of the tensors that are missing or unexpected


def require_sizes(
    config: ModelConfig, priors: Sequence[PriorConfig], tensors: Mapping[str, Tensor], origin: str
) -> None:
    """Raises ValueError, naming `origin`, unless tensors are those of a potential of this configuration.

    To be called before the potential is made: its size is then that of the tensors, which are there.
    """
    if len(priors) > MOST_PRIORS:
        raise ValueError(f"a potential must have at most {MOST_PRIORS} priors, got {len(priors)} in {origin}")
    wanted = skeleton(config)
    if wanted is not None:
        require_fit(wanted, tensors, origin)


def skeleton(config: ModelConfig) -> dict[str, Tensor] | None:
    """Tensors on the device "meta" by their names in a potential's state_dict; None where a model can't be made there.

    Models of torchmdx always can.
    """
    try:
        with torch.device("meta"), _WithoutValues():
            parts = {"network": make_network(config), "head": make_head(config)}
    except Exception:  # anything that the code of a registered model may raise without numbers
        if name_of(config) in BUILT_IN:
            raise
        return None
    found = {f"{part}.{name}": value for part, module in parts.items() for name, value in module.state_dict().items()}
    shapes: tuple[tuple[int, ...], ...] = ((), (), (config.max_z + 1,))
    exact = {
        name: torch.empty(shape, dtype=torch.float64, device="meta")
        for name, shape in zip(CONSTANTS, shapes, strict=True)
    }
    return found | exact


class _WithoutValues(TorchFunctionMode):
    """Leaves out what only sets values: on "meta" it would do nothing, after it has imported torch's compilers."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.linspace:
            return torch.empty(kwargs["steps"] if "steps" in kwargs else args[2])
        if func in (Tensor.uniform_, Tensor.normal_) or getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def require_fit(wanted: Mapping[str, Tensor], tensors: Mapping[str, Tensor], origin: str) -> None:
    """Raises ValueError, naming `origin`, unless tensors have the names, shapes and kinds of numbers wanted."""
    missing, unknown = sorted(wanted.keys() - tensors.keys()), sorted(tensors.keys() - wanted.keys())
    if missing or unknown:
        raise ValueError(
            f"the tensors of {origin} do not fit its configuration: missing {_some(missing)}, "
            f"unexpected {_some(unknown)}"
        )
    for name, value in tensors.items():
        shape = list(wanted[name].shape)
        if list(value.shape) != shape:
            raise ValueError(f"{name} in {origin} must have shape {shape}, got {list(value.shape)}")
        if wanted[name].is_floating_point():
            if value.dtype not in FLOATS:
                raise ValueError(f"{name} in {origin} must be of float16, 32 or 64 or bfloat16, got {value.dtype}")
        elif value.dtype != wanted[name].dtype:
            raise ValueError(f"{name} in {origin} must be of {wanted[name].dtype}, got {value.dtype}")


def _some(names: list[str]) -> str:
    return f"{names[:NAMED]}" + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
