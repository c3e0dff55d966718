"""How many atoms of given structures fit into the memory of a GPU, estimated from a small batch of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchmdx.dynamics.relaxation.evaluations import stress_needed
from torchmdx.dynamics.relaxation.fire import FireSettings
from torchmdx.dynamics.relaxation.tasks import RelaxationTask
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.step.captured_step import CapturedStep
from torchmdx.structures.system import Batch

# Atoms in the small batch; fewer say little about a large one, since some buffers have a least size.
PROBE_ATOMS = 256
# Of the free memory: a list of neighbours can grow, and a capture needs memory besides.
SHARE = 0.6


def most_atoms(
    potential: Potential | Ensemble, tasks: Sequence[RelaxationTask], settings: FireSettings, precision: str
) -> int:
    """Atoms of a batch that fits, at least those of the largest task. The potential must be on a GPU."""
    probe = probe_tasks(tasks)
    device = potential.device
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    batch = Batch.from_systems([task.system for task in probe])
    step = CapturedStep(potential, batch, mode="eager", stress=stress_needed(batch, settings), precision=precision)
    step(batch.positions, batch.cell)
    taken = torch.cuda.max_memory_allocated(device) - before
    del step
    free, _ = torch.cuda.mem_get_info(device)
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return scaled(taken, batch.num_atoms, free + cached, largest=max(task.num_atoms for task in tasks))


def probe_tasks(tasks: Sequence[RelaxationTask]) -> list[RelaxationTask]:
    """Some of the tasks, evenly spread over all, with about PROBE_ATOMS atoms; at least one."""
    mean = sum(task.num_atoms for task in tasks) / len(tasks)
    wanted = max(1, min(len(tasks), round(PROBE_ATOMS / mean)))
    chosen = [tasks[k * len(tasks) // wanted] for k in range(wanted)]
    while len(chosen) > 1 and sum(task.num_atoms for task in chosen) > 2 * PROBE_ATOMS:
        chosen = chosen[1:]  # the largest come first
    return chosen


def scaled(taken: int, num_atoms: int, free: int, *, largest: int) -> int:
    """Atoms that fit into SHARE of the free bytes, if num_atoms atoms took `taken`; at least `largest`."""
    return max(largest, int(SHARE * free / max(taken / num_atoms, 1)))
