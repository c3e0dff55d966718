"""What the fields of a System and a Batch have to be, and values from outside as such fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

LAST_ELEMENT = 118
_WHOLE = {"atomic_numbers": torch.int64, "system_index": torch.int64, "pbc": torch.bool}


def require_fields(holder: object, kind: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raises ValueError for a tensor of another shape, and TypeError for one of another dtype."""
    for name, shape in shapes.items():
        value: Tensor = getattr(holder, name)
        if value.shape != shape:
            raise ValueError(f"{name} of a {kind} must have shape {list(shape)}, got {list(value.shape)}")
        if name in _WHOLE and value.dtype != _WHOLE[name]:
            raise TypeError(f"{name} of a {kind} must have dtype {_WHOLE[name]}, got {value.dtype}")
        if name not in _WHOLE and not value.is_floating_point():
            raise TypeError(f"{name} of a {kind} must have a floating dtype, got {value.dtype}")


def require_order(system_index: Tensor, num_systems: int) -> None:
    """Raises ValueError unless the systems [N] of atoms ascend, from 0 to num_systems - 1 at most. Reads the device."""
    index = system_index.cpu().numpy()  # faster than operations of torch for few atoms
    falls = index[1:] < index[:-1]
    if falls.any():
        atom = int(falls.argmax())
        raise ValueError(
            f"system_index of a batch must ascend, got {index[atom]} for atom {atom} and {index[atom + 1]} for "
            f"atom {atom + 1}"
        )
    if len(index) and not 0 <= index[0] <= index[-1] < num_systems:
        raise ValueError(
            f"system_index of a batch of {num_systems} systems must be from 0 to {num_systems - 1}, "
            f"got {index[0]} to {index[-1]}"
        )


def moved(values: Tensor, device: torch.device | str | None, dtype: torch.dtype | None) -> Tensor:
    """Values on another device, floating ones in another dtype."""
    return values.to(device=device, dtype=dtype if values.is_floating_point() else None)


def array_of(value: Any) -> np.ndarray:
    """A tensor or an array as an array."""
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)


def floats(name: str, value: Any, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """`value` as a finite tensor of `shape`; a tensor that fits already is used as it is (gradients kept).

    Raises ValueError or TypeError that name the requirement and the value, as `whole_numbers` and `flags` do.
    """
    if dtype not in (torch.float32, torch.float64):
        raise TypeError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
    try:
        array = array_of(value).astype(np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be an array of {list(shape)} numbers, got {type(value).__name__}") from error
    if array.shape == (0,) and shape[0] == 0:
        array = array.reshape(shape)
    if array.shape != shape:
        raise ValueError(f"{name} must have shape {list(shape)}, got {list(array.shape)}")
    if not np.isfinite(array).all():
        where = tuple(np.argwhere(~np.isfinite(array))[0])
        what = f"in row {where[0]}" if name == "cell" else f"of atom {where[0]}"
        raise ValueError(f"{name} must be finite, got {array[where]} {what}")
    source = value if isinstance(value, Tensor) and value.shape == shape else array
    return torch.as_tensor(source, dtype=dtype, device=device)


def whole_numbers(value: Any) -> np.ndarray:
    """Atomic numbers [N], int64."""
    numbers = array_of(value)
    if numbers.size == 0:
        return np.zeros(0, dtype=np.int64)
    if numbers.ndim != 1 or not np.issubdtype(numbers.dtype, np.integer):
        raise TypeError(
            f"atomic_numbers must be a vector of whole numbers, got {numbers.dtype} of shape {list(numbers.shape)}"
        )
    wrong = (numbers < 1) | (numbers > LAST_ELEMENT)
    if wrong.any():
        atom = int(np.argmax(wrong))
        raise ValueError(
            f"atomic numbers must be from 1 to {LAST_ELEMENT}, got {numbers[atom]} for atom {atom}"
            + (" (the unknown element X)" if numbers[atom] == 0 else "")
        )
    return numbers.astype(np.int64)


def flags(pbc: Any) -> np.ndarray:
    """Periodic directions [3], from one value or three."""
    array = array_of(False if pbc is None else pbc)
    if array.dtype != np.bool_ and not np.isin(array, (0, 1)).all():
        raise ValueError(f"pbc must be True, False or three of them, got {pbc!r}")
    if array.shape not in ((), (3,)):
        raise ValueError(f"pbc must be one value or three, got shape {list(array.shape)}")
    return np.broadcast_to(array.astype(bool), (3,)).copy()
