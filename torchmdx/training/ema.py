"""Temporary use of the averaged weights, for validation and saving."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torchmdx.training.optimizer import AdamW


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
