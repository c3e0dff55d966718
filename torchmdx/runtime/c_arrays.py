"""Tensors given to code in C, which reads and writes their memory without knowing what they are."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

CPU = torch.device("cpu")
FLOATS = (torch.float32, torch.float64)


def address(
    name: str, array: Tensor, *dtypes: torch.dtype, shape: Sequence[int] | None = None, device: torch.device = CPU
) -> int:
    """The address of an array, which the caller has to keep alive. shape: None if the code takes any.

    Raises:
        ValueError: Unless the array is contiguous, on the device, of this shape and of one of the dtypes.
    """
    if (
        array.dtype in dtypes
        and array.is_contiguous()
        and array.device == device
        and (shape is None or array.shape == shape)
    ):
        return array.data_ptr()
    kinds = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
    of_shape = "" if shape is None else f" of shape {list(shape)}"
    strides = "" if array.is_contiguous() else f" and strides {list(array.stride())}"
    raise ValueError(
        f"compiled code needs {name} as contiguous {kinds}{of_shape} on {device}, got "
        f"{str(array.dtype).removeprefix('torch.')} of shape {list(array.shape)}{strides} on {array.device}"
    )
