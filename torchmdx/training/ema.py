"""The averaged weights in the place of the trained ones, for validation and saving."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torchmdx.training.optimizer import AdamW


@contextmanager
def averaged(optimizer: AdamW) -> Iterator[None]:
    """Inside `with`, the network has the average of its weights: copied into place, so that recorded steps see it."""
    values = optimizer.flat.values
    kept = values.clone()
    values.copy_(optimizer.average)
    try:
        yield
    finally:
        values.copy_(kept)
