"""The frame of a captured step: order of atoms, whole lattice vectors and origin that it subtracts from positions.

Forces depend on the frame within rounding, so that a run that continues to the bit has to continue with its frame.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from torchmdx.dynamics.snapshot import FRAME
from torchmdx.step.state import StepState


def frame_of(step: StepState) -> dict[str, NDArray[Any]]:
    """A copy of the frame, as NumPy arrays. Waits for a GPU."""
    return {name: np.array(getattr(step.buffers, name).cpu().numpy()) for name in FRAME}


def set_frame(step: StepState, frame: dict[str, NDArray[Any]]) -> None:
    """Makes a step use a frame of `frame_of`."""
    before, step.unsettled = step.unsettled, True
    for name in FRAME:
        held = getattr(step.buffers, name)
        held.copy_(torch.as_tensor(frame[name]).to(held))
    index = step.buffers.order.long()
    step.ordered.atomic_numbers.copy_(step.batch.atomic_numbers[index])
    if step.ordered.partial_charges is not None and step.batch.partial_charges is not None:
        step.ordered.partial_charges.copy_(step.batch.partial_charges[index])
    step.unsettled = before
