"""Names, shapes and dtypes of a potential's tensors, determined without allocating memory for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from torchmdx.models.priors.base import PriorConfig
from torchmdx.models.registry import BUILT_IN, ModelConfig, make_head, make_network, name_of

CONSTANTS = ("scale", "shift", "reference_energies")
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
MOST_PRIORS = 16  # tables of priors are larger than their settings: a short text must not request thousands
NAMED = 5  # names of missing or unexpected tensors in a message


def require_sizes(
    config: ModelConfig, priors: Sequence[PriorConfig], tensors: Mapping[str, Tensor], origin: str
) -> None:
    """Raises ValueError, naming `origin`, unless tensors are those of a potential of this configuration.

    Called before the potential is made, so that it needs no more memory than the tensors that were read.
    """
    if len(priors) > MOST_PRIORS:
        raise ValueError(f"a potential must have at most {MOST_PRIORS} priors, got {len(priors)} in {origin}")
    expected = skeleton(config)
    if expected is not None:
        require_fit(expected, tensors, origin)


def skeleton(config: ModelConfig) -> dict[str, Tensor] | None:
    """Tensors of a potential's state_dict by name, on the device "meta"; None if the model cannot be made there.

    torchmdx's own models always can.
    """
    try:
        with torch.device("meta"), _WithoutValues():
            modules = {"network": make_network(config), "head": make_head(config)}
    except Exception:  # the code of a registered model may raise anything on tensors without values
        if name_of(config) in BUILT_IN:
            raise
        return None
    found = {f"{key}.{name}": value for key, module in modules.items() for name, value in module.state_dict().items()}
    shapes: tuple[tuple[int, ...], ...] = ((), (), (config.max_z + 1,))
    exact = {
        name: torch.empty(shape, dtype=torch.float64, device="meta")
        for name, shape in zip(CONSTANTS, shapes, strict=True)
    }
    return found | exact


class _WithoutValues(TorchFunctionMode):
    """Skips functions that only set values. On "meta" they have no effect but import torch's compilers."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.linspace:
            return torch.empty(kwargs["steps"] if "steps" in kwargs else args[2])
        if func in (Tensor.uniform_, Tensor.normal_) or getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def require_fit(expected: Mapping[str, Tensor], tensors: Mapping[str, Tensor], origin: str) -> None:
    """Raises ValueError, naming `origin`, unless tensors have the expected names, shapes and kinds of numbers."""
    missing, unknown = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
    if missing or unknown:
        raise ValueError(
            f"the tensors of {origin} do not fit its configuration: missing {_some(missing)}, "
            f"unexpected {_some(unknown)}"
        )
    for name, value in tensors.items():
        shape = list(expected[name].shape)
        if list(value.shape) != shape:
            raise ValueError(f"{name} in {origin} must have shape {shape}, got {list(value.shape)}")
        if expected[name].is_floating_point():
            if value.dtype not in FLOATS:
                raise ValueError(f"{name} in {origin} must be of float16, 32 or 64 or bfloat16, got {value.dtype}")
        elif value.dtype != expected[name].dtype:
            raise ValueError(f"{name} in {origin} must be of {expected[name].dtype}, got {value.dtype}")


def require_finite(tensors: Mapping[str, Tensor], names: Iterable[str], origin: str) -> None:
    """Raises ValueError, naming `origin`, if one of these tensors has a value that is not finite."""
    for name in names:
        if not tensors[name].isfinite().all():
            raise ValueError(f"{name} in {origin} must be finite, got NaN or infinity")


def require_up_to(largest: Mapping[str, int], atomic_numbers: Tensor) -> None:
    """Raises ValueError that names an atom beyond the largest atomic number that a part knows, by what it is called."""
    for who, most in largest.items():
        beyond = atomic_numbers > most
        if beyond.any():
            atom = int(beyond.nonzero()[0])
            raise ValueError(
                f"{who} knows atomic numbers up to {most}, got {int(atomic_numbers[atom])} for atom {atom}"
            )


def _some(names: list[str]) -> str:
    return f"{names[:NAMED]}" + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
