"""The loop that takes the steps of a dynamics: on a GPU, or on the host."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import torch
from numpy.typing import NDArray

from torchmdx.dynamics.exchange import TemperatureExchange
from torchmdx.dynamics.host_loop import HostLoop
from torchmdx.dynamics.motion import Motion
from torchmdx.models.potential import Potential
from torchmdx.step.capture_policy import require_mode
from torchmdx.step.captured_step import CapturedStep
from torchmdx.structures.system import Batch

# Most steps of a graph by default; fewer for many atoms, whose launches take less time than they run.
MOST_STEPS, MOST_ATOM_STEPS = 20, 200_000


def require_replays(mode: str, device: torch.device, steps_per_replay: int | None) -> None:
    """Raises ValueError or GraphRefused for a mode, and ValueError for a number of steps, that cannot be used."""
    require_mode(mode, device)
    if steps_per_replay is not None and steps_per_replay < 1:
        raise ValueError(f"steps_per_replay must be >= 1, got {steps_per_replay}")


def step_of_fast(fast: Potential, full: CapturedStep, batch: Batch) -> CapturedStep:
    """The captured step of a fast potential, for the batch of the full one.

    Raises:
        ValueError: For a potential on another device, and for elements that it does not know.
    """
    if fast.device != full.device:
        raise ValueError(f"fast must be on the device of the potential, {full.device}, got {fast.device}")
    try:
        fast.require_elements(batch.atomic_numbers)
    except ValueError as error:
        raise ValueError(f"fast potential: {error}") from None
    precision = full.precision if fast.dtype == full.potential.dtype else None
    return CapturedStep(fast, batch, mode="eager", skin=full.skin, precision=precision)


def make_loop(
    step: CapturedStep,
    fast: CapturedStep | None,
    batch: Batch,
    motion: Motion,
    velocities: NDArray[Any],
    mode: str,
    steps_per_replay: int | None = None,
    exchange: TemperatureExchange | None = None,
) -> Any:
    """A DeviceLoop where the integrator has a step on a GPU, else a HostLoop.

    Args:
        exchange: To be decided on the GPU.

    Raises:
        ValueError: For mode "graph" with an integrator that has no step on a GPU.
    """
    given = (step, motion, batch.positions.numpy(), velocities, batch.cell.numpy())
    on_device = motion.integrator.has_device_step
    if mode == "graph" and not on_device:
        raise ValueError(f"mode 'graph' needs an integrator with a step on a GPU, got {motion.integrator!r} without")
    if step.device.type == "cuda" and on_device and importlib.util.find_spec("triton"):
        from torchmdx.dynamics.device_loop import DeviceLoop

        size = steps_per_replay or default_steps_per_replay(batch.num_atoms)
        return DeviceLoop(*given, steps_per_replay=size, mode=mode, exchange=exchange, fast=fast)
    return HostLoop(*given, fast=fast)


def default_steps_per_replay(num_atoms: int) -> int:
    """Steps of a graph for this number of atoms."""
    return max(1, min(MOST_STEPS, MOST_ATOM_STEPS // max(num_atoms, 1)))


def stops(start: int, end: int, intervals: list[int]) -> Iterator[int]:
    """The multiples of intervals after `start` and before `end`, in order, and the end."""
    step = start
    while step < end:
        step = min(end, *((step // interval + 1) * interval for interval in intervals))
        yield step
    if start == end:
        yield end


def make_process_loop(*given: Any) -> Any:
    """A ProcessLoop of these arguments; its module is not needed without several devices."""
    from torchmdx.dynamics.process_loop import ProcessLoop

    return ProcessLoop(*given)
