"""How many labels from a fixed pool a potential needs, by how frames are selected.

    python -m benchmarks.learning_pool run --folder FOLDER [--workers 28] [--seconds 530]
    python -m benchmarks.learning_pool record --folder FOLDER

The pools (learning_pools.py) are frames of dynamics of the reference: an alloy with EMT, and molecules with organic-1.
In one of each kind eight tenths of the frames are alike (rare), in the other all kinds have as many (even). Test frames
are of all kinds in equal numbers, from other seeds.

Each chain begins with one frame of each starting structure and others at random, and then selects and trains anew until
it has as many labels as the last of SIZES; all trainings have as many optimizer steps. Frames are selected as by
`torchmdx learn`: random; last_layer, by the uncertainty of one potential and distance; ensemble, by the spread of three
and distance; diverse, by distance alone. Errors are those of one potential. tail: below it is the largest force error
of 95 % of the test frames. Results go to learning_pool.json.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import ase
import numpy as np
from ase.io import iread, write

from benchmarks import record, side_by_side
from benchmarks.learning_errors import rank_correlation
from benchmarks.learning_pools import EVEN, RARE, pool_file, test_file, write_pools
from benchmarks.learning_summary import TAIL, gains, halves, summarized
from benchmarks.side_by_side import Task

KEYS = ("kind", "case", "strategy", "seed", "round", "set")
SIZES = (30, 60, 120, 240)  # labels
STEPS = 700  # of every training
BATCH = 5
MEMBERS = 3
RANDOM, LAST_LAYER, ENSEMBLE, DIVERSE = "random", "last_layer", "ensemble", "diverse"
# In the order in which they start.
PLAN = [
    (system, kind, strategy, seed)
    for kind, strategies in (
        (RARE, (ENSEMBLE, LAST_LAYER, RANDOM)),
        (EVEN, (ENSEMBLE, LAST_LAYER, RANDOM)),
        (RARE, (DIVERSE,)),
    )
    for seed in range(3)
    for system in ("alloy", "molecules")
    for strategy in strategies
]
SCORES = "scores.jsonl"


Found = dict[str, Any]


def config_of(file: Path, folder: Path, count: int, seed: int, steps: int) -> Any:
    """The training that `torchmdx learn` makes of `count` frames, of one potential."""
    from torchmdx.learning.config import LearnConfig
    from torchmdx.training.config_file import make_as

    epochs = max(1, round(steps * BATCH / (count - held_out(count))))
    values = {
        "start": {"structures": str(file), "data": str(file)},
        "uncertainty": {"kind": LAST_LAYER},
        "label": {"calculator": "emt"},
        "train": {
            "model": {"num_channels": 32, "num_layers": 1, "cutoff": 4.5},
            "data": {"seed": seed, "validation": held_out(count)},
            "optimizer": {"learning_rate": 4e-3},
            "training": {"epochs": epochs, "batch_size": BATCH, "seed": seed, "device": "cpu"},
        },
    }
    return make_as(LearnConfig, values).training(str(folder), [str(file)], None, count)


def held_out(count: int) -> int:
    """Frames for validation."""
    return max(10, count // 10)


def member(
    file: Path, folder: Path, count: int, seed: int, steps: int, pool: Path | None, tests: Path
) -> dict[str, Any]:
    """Trains a potential; returns what it says of the pool and of the test frames."""
    import torch

    import torchmdx
    from torchmdx.training.run import train

    torch.set_num_threads(1)
    assert train(config_of(file, folder, count, seed, steps)) == 0
    calculator = torchmdx.Calculator(folder / "best.safetensors", device="cpu")
    of_pool, told = (
        [_evaluated(calculator, frame) for frame in (iread(file) if file else [])] for file in (pool, tests)
    )
    return {
        "potential": str(folder / "best.safetensors"),
        "pool_forces": [one[0] for one in of_pool],
        "pool_uncertainty": np.array([one[1] for one in of_pool]),
        "test_forces": [one[0] for one in told],
        "test_uncertainty": np.array([one[1] for one in told]),
        "test_energies": np.array([one[2] for one in told]),
    }


def _evaluated(calculator: Any, frame: ase.Atoms) -> tuple[np.ndarray, float, float]:
    """Forces, the largest uncertainty of an energy of an atom, and the energy."""
    atoms = ase.Atoms(frame.numbers, frame.positions, cell=frame.cell, pbc=frame.pbc, calculator=calculator)
    forces = atoms.get_forces()
    return forces, float(np.max(calculator.results["energies_uncertainty"])), float(atoms.get_potential_energy())


def spread(forces: list[list[np.ndarray]]) -> np.ndarray:
    """Of each frame the largest spread of the force of an atom, over members: sqrt(sum of variances of components)."""
    each = [np.stack(own) for own in zip(*forces, strict=True)]
    return np.array([np.sqrt(own.var(axis=0, ddof=1).sum(-1)).max() for own in each])


def errors(found: dict[str, Any], uncertain: np.ndarray, tests: list[ase.Atoms]) -> list[dict[str, Any]]:
    """Of the forces and energies on each set of test frames, and on all."""
    names = np.array([frame.info["set"] for frame in tests])
    differences = [own - frame.get_forces() for own, frame in zip(found["test_forces"], tests, strict=True)]
    largest = np.array([np.linalg.norm(one, axis=1).max() for one in differences])
    wanted = np.array([frame.get_potential_energy() for frame in tests])
    energies = (found["test_energies"] - wanted) / [len(frame) for frame in tests]
    rows = []
    for name in (*dict.fromkeys(names.tolist()), "all"):
        chosen = np.flatnonzero((names == name) | (name == "all"))
        every = np.concatenate([differences[k].ravel() for k in chosen])
        rows.append(
            {
                "set": name,
                "member_force_rmse_meV": 1e3 * float(np.sqrt((every**2).mean())),
                "member_energy_rmse_meV": 1e3 * float(np.sqrt((energies[chosen] ** 2).mean())),
                "tail_meV": 1e3 * float(np.quantile(largest[chosen], 0.95)),
                "rank": rank_correlation(largest[chosen], uncertain[chosen]),
            }
        )
    return rows


def select(strategy: str, first: str, uncertain: np.ndarray, pool: list[Any], taken: list[int], more: int) -> list[int]:
    """Places of `more` frames of the pool, beyond those that are taken."""
    from torchmdx import load
    from torchmdx.learning.select import choose, describe, vectors

    free = np.setdiff1d(np.arange(len(pool)), taken)
    described = describe(load(first, device="cpu"), pool)
    rows = vectors(described, described)
    weights = np.ones(len(free)) if strategy == DIVERSE else uncertain[free]
    chosen, _ = choose(rows[free], weights, rows[taken], count=more, duplicates=0.1)
    return [int(free[one.place]) for one in chosen]


def in_order(starts: list[str], seed: int) -> list[int]:
    """Places of all frames: first one of each starting structure, then all others at random."""
    order = np.random.default_rng(seed).permutation(len(starts)).tolist()
    first: dict[str, int] = {}
    for place in order:
        first.setdefault(starts[place], place)
    return [*first.values(), *(place for place in order if place not in first.values())]


def chain(system: str, kind: str, strategy: str, seed: int, folder: Path, steps: int, sizes: tuple[int, ...]) -> None:
    """Selects and trains, size by size; a line of SCORES for each."""
    from torchmdx.datasets.labelling.geometry import UnlabelledStructure
    from torchmdx.learning.structures import system_of

    files = pool_file(folder, system, kind), test_file(folder, system)
    frames, tests = (list(iread(file)) for file in files)
    pool = [system_of(UnlabelledStructure.from_ase(frame)) for frame in frames]
    order = in_order([frame.info["start"] for frame in frames], seed)
    place = folder / f"{system}-{kind}-{strategy}-{seed}"
    place.mkdir()
    taken = order[: sizes[0]]
    count = MEMBERS if strategy == ENSEMBLE else 1
    # The others do not ask for uncertainties of the pool.
    asked = (files[0] if strategy in (LAST_LAYER, ENSEMBLE) else None, files[1])
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as workers:
        for number, size in enumerate(sizes):
            began, data = time.monotonic(), place / f"{size}.extxyz"
            write(data, [frames[k] for k in taken], format="extxyz")
            jobs = [
                workers.submit(member, data, place / f"{size}-{k}", len(taken), 100 * k + seed, steps, *asked)
                for k in range(count)
            ]
            found = [job.result() for job in jobs]
            uncertain, of_tests = found[0]["pool_uncertainty"], found[0]["test_uncertainty"]
            if count > 1:
                uncertain, of_tests = (spread([one[name] for one in found]) for name in ("pool_forces", "test_forces"))
            kinds = [frames[k].info["set"] for k in taken]
            facts = {
                "labels": len(taken),
                "round": number,
                "seconds": time.monotonic() - began,
                "chosen": {name: kinds.count(name) for name in dict.fromkeys(kinds)},
            }
            with (place / SCORES).open("a") as file:
                for row in errors(found[0], of_tests, tests):
                    file.write(json.dumps(facts | row) + "\n")
            if number + 1 < len(sizes):
                last = sizes[number + 1]
                if strategy == RANDOM:
                    taken = order[:last]
                else:
                    more = last - len(taken)
                    taken = taken + select(strategy, found[0]["potential"], uncertain, pool, taken, more)


def run(options: argparse.Namespace) -> None:
    """Makes the pools, and runs chains, each on as many cores as it has members, until the time is over."""
    folder, began = options.folder, time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    systems = options.only.split(",")
    write_pools(folder, systems, options.workers, options.share)
    print(f"{time.monotonic() - began:6.0f} s  pools", flush=True)
    asked = (systems, options.kinds.split(","), options.strategies.split(","), range(options.seeds))
    common = ["--folder", str(folder), "--share", str(options.share), "--sizes", options.sizes]
    chains = []
    for one in PLAN:
        if all(value in known for value, known in zip(one, asked, strict=True)):
            words, cores = [str(word) for word in one], MEMBERS if one[2] == ENSEMBLE else 1
            log = folder / f"{'-'.join(words)}.log"
            chains.append(Task("benchmarks.learning_pool", ["chain", *words, *common], log, cores))
    side_by_side.run(chains, options.workers, began + options.seconds)


def scores(folder: Path) -> list[dict[str, Any]]:
    """What has been measured of all chains, a row for each training and set."""
    found = []
    for system, kind, strategy, seed in PLAN:
        path = folder / f"{system}-{kind}-{strategy}-{seed}" / SCORES
        for line in path.read_text().splitlines() if path.exists() else []:
            key = {"kind": "curve", "case": f"{system}, {kind}", "strategy": strategy, "seed": seed}
            found.append(key | json.loads(line))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "record", "chain"))
    parser.add_argument("names", nargs="*", help="of a chain, which run starts")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=28, help="cores")
    parser.add_argument("--seconds", type=float, default=530.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="alloy,molecules")
    parser.add_argument("--kinds", default=f"{RARE},{EVEN}")
    parser.add_argument("--strategies", default=",".join((RANDOM, LAST_LAYER, ENSEMBLE, DIVERSE)))
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--share", type=float, default=1.0, help="of steps, for a trial")
    options = parser.parse_args()
    if options.what == "run":
        run(options)
    elif options.what == "record":
        rows = scores(options.folder)
        print(
            record.update(
                "learning_pool", [*summarized(rows), *gains(rows, TAIL), *halves(rows), *halves(rows, TAIL)], KEYS
            )
        )
    else:
        system, kind, strategy, seed = options.names
        sizes = tuple(map(int, options.sizes.split(",")))
        chain(system, kind, strategy, int(seed), options.folder, max(1, int(STEPS * options.share)), sizes)


if __name__ == "__main__":
    main()
