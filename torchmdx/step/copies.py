"""Copies and pickles of a captured step: made from its structure, settings and last cell, without graphs."""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.runtime.precisions import saved_precision
from torchmdx.step.buffer_storage import UNCERTAINTIES
from torchmdx.step.buffers import StepBuffers
from torchmdx.step.capture_policy import GraphPolicy
from torchmdx.structures.system import Batch


class _Step(Protocol):
    potential: Potential | Ensemble
    batch: Batch
    buffers: StepBuffers
    policy: GraphPolicy
    skin: float
    precision: str
    audit_every: int
    engine_asked: str | None
    max_memory: int | None
    assigning: bool


def parts_of(step: _Step, last_kind: str) -> tuple[Any, ...]:
    """The arguments of `restored` after the first. last_kind: "host" or "device", where the last cell came from."""
    buffers, limit = step.buffers, float(step.buffers.most)
    certain = buffers.doubts == UNCERTAINTIES
    options = {
        "mode": step.policy.asked,
        "stress": buffers.stress_wanted,
        "energies": buffers.energies_wanted,
        "skin": step.skin,
        "precision": step.precision,
        "audit_every": step.audit_every,
        ("max_uncertainty" if certain else "max_force_spread"): limit if math.isfinite(limit) else None,
        "uncertainty": certain,
        "engine": step.engine_asked,
        "max_memory": step.max_memory,
    }
    inputs = buffers.inputs if last_kind == "device" else buffers.host_inputs
    return step.potential, step.batch, options, inputs["cell"].cpu().numpy().copy(), step.assigning


def restored(
    kind: Any,
    potential: Potential | Ensemble,
    batch: Batch,
    options: dict[str, Any],
    cell: NDArray[np.float64],
    assigning: bool,
) -> Any:
    """A step of this class with the settings, the structure and the last cell of another."""
    step = kind(potential, batch, **options | {"precision": saved_precision(options["precision"])})
    for inputs in (step.buffers.host_inputs, step.buffers.inputs):
        inputs["cell"].copy_(inputs["cell"].new_tensor(cell))
    step.assigning = assigning
    return step
