"""What the tensors of a System and a Batch have to be: shapes, dtypes, and the order of the systems of atoms."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

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
