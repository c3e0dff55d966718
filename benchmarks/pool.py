"""Times structures of many sizes one after the other: StepPool, one step of the largest size, and torchmd-net.

    python -m benchmarks.pool [--peer] [--molecules 1000] [--rounds 10] [--cases pool,batches]

Molecules are clusters of 3 to 74 atoms cut from proteins, in random order, each round in another one. Weights are those
of step.py. molecules_s: evaluations of energy and forces a second, from NumPy positions to NumPy forces, the whole
run with all captures in it; last_round_s: of the last round alone. captures: steps that were made. Batches: 64
molecules at a time in a BatchPool.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks import peer_model, record, step, systems
from torchmdx import Batch, Potential, System
from torchmdx.step import pool as pool_module
from torchmdx.step.batch_pool import BatchPool
from torchmdx.step.captured_step import CapturedStep
from torchmdx.step.padding import padded
from torchmdx.step.pool import StepPool

SMALLEST, LARGEST, IN_BATCH = 3, 74, 64
MODE = "graph"


def molecules(count: int) -> list[System]:
    """An atom of a protein with its nearest neighbours, of sizes that are equally frequent."""
    rng, found = np.random.default_rng(0), []
    proteins = [systems.load(name)[:2] for name in ("chignolin", "dhfr")]
    for _ in range(count):
        numbers, positions = proteins[rng.integers(len(proteins))]
        near = np.argsort(np.linalg.norm(positions - positions[rng.integers(len(numbers))], axis=1))
        near = near[: rng.integers(SMALLEST, LARGEST + 1)]
        found.append(System.create(positions[near], numbers[near]))
    return found


def timed(work: Callable[[Sequence[int]], object], count: int, rounds: int) -> dict[str, float]:
    rng, each = np.random.default_rng(1), []
    for _ in range(rounds):
        order = rng.permutation(count).tolist()
        torch.cuda.synchronize()
        start = time.perf_counter()
        work(order)
        torch.cuda.synchronize()
        each.append(time.perf_counter() - start)
    return dict(
        molecules_s=round(count * rounds / sum(each)), last_round_s=round(count / each[-1]), seconds=round(sum(each), 2)
    )


def one_at_a_time(model: Potential, given: list[System], rounds: int, **settings: Any) -> dict[str, Any]:
    made = StepPool(model, mode=MODE, **settings)
    captures, make = [], made._make_step
    made._make_step = lambda batch: captures.append(batch.num_atoms) or make(batch)  # type: ignore[method-assign]
    row = timed(lambda order: [made(given[k]) for k in order], len(given), rounds)
    memory = sum(step.memory_bytes() for step in made.steps) / 2**30
    return row | dict(captures=len(captures), sizes=sorted(captures), memory_GB=round(memory, 3))


def one_size(model: Potential, given: list[System], rounds: int) -> dict[str, Any]:
    batches = [padded(system, LARGEST + 1, model.cutoff) for system in given]
    captured = CapturedStep(model, batches[0], mode=MODE)
    positions = [batch.positions.numpy() for batch in batches]

    def work(order: Sequence[int]) -> None:
        for k in order:
            captured.assign(batches[k])
            captured(positions[k])

    return timed(work, len(given), rounds) | dict(captures=1)


def in_batches(model: Potential, given: list[System], rounds: int) -> dict[str, Any]:
    """Batches of IN_BATCH molecules, from NumPy to NumPy."""
    pool = BatchPool(model, mode=MODE)

    def work(order: Sequence[int]) -> None:
        for start in range(0, len(order), IN_BATCH):
            batch = Batch.from_systems([given[k] for k in order[start : start + IN_BATCH]]).to("cuda")
            pool.hold(batch)
            result = pool(batch.positions, batch.cell)
            result.energy.cpu().numpy(), result.forces.cpu().numpy()

    row = timed(work, len(given), rounds)
    return row | dict(sizes=[step.batch.num_atoms for step in pool.steps])


def peer(model: Potential, given: list[System], rounds: int) -> dict[str, Any]:
    config = model.config
    sizes = (config.cutoff, config.num_channels, config.num_layers, config.num_radial, None, 64)
    network = peer_model.build("eager", *sizes)
    peer_model.copy_weights(model, network)
    network = network.cuda().requires_grad_(False)

    def work(order: Sequence[int]) -> None:
        for k in order:
            positions = given[k].positions.float().cuda().requires_grad_(True)
            index = torch.zeros(len(positions), dtype=torch.long, device="cuda")
            energy, forces = network(given[k].atomic_numbers.cuda(), positions, index)
            energy.detach().cpu(), forces.detach().cpu()

    return timed(work, len(given), rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--molecules", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--peer", action="store_true", help="time torchmd-net as well, for one round")
    parser.add_argument("--cases", help=f"of {', '.join(CASES)}; all of them if left out")
    options = parser.parse_args()
    asked = options.cases.split(",") if options.cases else list(CASES)
    if unknown := set(asked) - CASES.keys():
        parser.error(f"cases must be of {', '.join(CASES)}, got {', '.join(unknown)}")
    runs = [(*CASES[case], options.rounds) for case in asked]
    if options.peer:
        runs.append(("torchmd-net", peer, 1))
    model, given = step.potential(False).cuda(), molecules(options.molecules)
    one_at_a_time(model, given[:200], 1)  # compiles
    rows = []
    for name, case, rounds in runs:
        rows.append({"by": name, "molecules": len(given), **case(model, given, rounds)})
        print(rows[-1], flush=True)
    record.write("pool", rows)


def alone(model: Potential, given: list[System], rounds: int) -> dict[str, Any]:
    """Every size with a step of its own, of which eight are kept."""
    most, pool_module.SHARED_UP_TO = pool_module.SHARED_UP_TO, 0
    try:
        return one_at_a_time(model, given, rounds, most_steps=8)
    finally:
        pool_module.SHARED_UP_TO = most


CASES: dict[str, tuple[str, Callable[[Potential, list[System], int], dict[str, Any]]]] = {
    "pool": ("pool", one_at_a_time),
    "alone": ("pool of eight steps, one for each size", alone),
    "one": ("one size", one_size),
    "batches": ("batches", in_batches),
}

if __name__ == "__main__":
    main()
