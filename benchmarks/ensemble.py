"""An ensemble of four against one of its members, as captured steps with search and copies, in one run.

    python -m benchmarks.ensemble [--members 4] [--names alanine_dipeptide,dhfr]

The potential of benchmarks/step.py, with four seeds. ms: medians of CUDA events around a replay. wall_ms: from NumPy
positions to NumPy forces. times_single: ms of the ensemble over ms of the single potential. in_turn_ms: the same
ensemble with its members one after the other. force_error, spread_error: largest difference of mean forces and of their
spread from those of separate steps of the members, relative to the largest force.
"""

from __future__ import annotations

import argparse
import time
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from benchmarks import peer_model, record, systems
from torchmdx import CapturedStep, Ensemble, Potential, System, TensorNetConfig
from torchmdx.engines.plan import members

NAMES = ("alanine_dipeptide", "chignolin", "dhfr")
REPEATS = 300


def potential(seed: int) -> Potential:
    """Random weights with filters and forces of the size of trained ones."""
    torch.manual_seed(seed)
    made = Potential(TensorNetConfig(max_z=99)).requires_grad_(False)
    with torch.no_grad():
        for layer in made.network.layers:
            layer.filters[4].weight.mul_(4)
        made.scale.fill_(5.0)
    return made.cuda()


def timed(model: Potential | Ensemble, system: System, positions: np.ndarray) -> tuple[dict[str, Any], Any]:
    torch.cuda.empty_cache()
    step = CapturedStep(model, system, mode="graph")
    result = step(positions)
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        step(positions)
        times.append(time.perf_counter() - start)
    report = step.report()
    row = {
        "ms": peer_model.milliseconds(step.policy.graphs["host"].replay, REPEATS, 5),
        "wall_ms": sorted(times)[REPEATS // 2] * 1e3,
        "nodes": report.nodes,
        "audit_error": report.error,
        "step_memory_GB": round(report.memory_bytes / 2**30, 3),
    }
    return row, result


def in_turn(model: Ensemble, system: System, positions: np.ndarray) -> float:
    """ms of a step whose members run one after the other."""
    with patch.object(members, "MOST_SIDE_BY_SIDE", 0):
        return float(timed(model, system, positions)[0]["ms"])


def compare(name: str, members: list[Potential]) -> list[dict[str, Any]]:
    numbers, positions, cell = systems.load(name)
    system = System.create(positions, numbers, cell, pbc=None if cell is None else True)
    single, _ = timed(members[0], system, positions)
    together, found = timed(Ensemble(members), system, positions)
    apart = np.stack([CapturedStep(member, system, mode="eager")(positions).forces for member in members])
    spread = np.sqrt(((apart - apart.mean(0)) ** 2).sum((0, 2)) / (len(members) - 1))
    together |= {
        "times_single": round(together["ms"] / single["ms"], 3),
        "in_turn_ms": in_turn(Ensemble(members), system, positions),
        "force_error": float(np.abs(found.forces - apart.mean(0)).max() / np.abs(apart).max()),
        "spread_error": float(np.abs(found.force_spread - spread).max() / np.abs(apart).max()),
        "largest_spread": float(spread.max()),
    }
    common = {"system": name, "atoms": len(numbers)}
    return [{**common, "members": 1, **single}, {**common, "members": len(members), **together}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", default=",".join(NAMES))
    parser.add_argument("--members", type=int, default=4)
    options = parser.parse_args()
    members, rows = [potential(seed) for seed in range(options.members)], []
    for name in options.names.split(","):
        for row in compare(name, members):
            rows.append(row)
            print(rows[-1], flush=True)
        record.write("ensemble", rows)


if __name__ == "__main__":
    main()
