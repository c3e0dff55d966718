"""What `torchmdx learn` reaches with how many labels, by how frames are selected.

    python -m benchmarks.learning run --folder FOLDER [--workers 16] [--seconds 540] [--rounds 5]
    python -m benchmarks.learning record --folder FOLDER

run: each run of `torchmdx learn` is a process; after `seconds` all are stopped, and the same command continues. record:
writes what is in the folder to learning.json, rows of two kinds, and what learning_summary.py makes of them. curve: the
error of the potential after each round on test frames, which dynamics of the reference has visited from other
structures:

- alloy: Cu-Au with the EMT potential of ASE: crystals, melts and (111) surfaces
- ethanol: with organic-1 as the reference, at three temperatures

strategies: ensemble, frames by the spread of three potentials and distance; random, frames of the same exploration at
random; last_layer, by the uncertainty of one potential and distance. member: errors of one potential (of an ensemble
the mean over its members), which compare selections with equal potentials. rank: correlation of the uncertainties of
test frames with their largest force errors.

barrier: the transfer of the proton in malonaldehyde with GFN2-xTB as the reference, by relaxed scans of both, explored
with harmonic restraints (held) and without (free).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import record, side_by_side
from benchmarks.learning_cases import CASES, DONOR, HELD, PROTON, Case
from benchmarks.learning_summary import summarized
from benchmarks.side_by_side import Task

KEYS = ("kind", "case", "strategy", "seed", "round", "set")
COUNT = 10  # labels of a round, and before the first one
CALIBRATED = 20  # labels before the first round where frames are held out
ROUNDS = 5
EPOCHS = 80
SCORES = "scores.json"
RESTRAINT = {"kind": "distance", "atoms": [DONOR, PROTON], "stiffness": 20.0}
STRATEGIES: dict[str, dict[str, Any]] = {
    "ensemble": {},
    "random": {"select": {"random": COUNT}},
    "last_layer": {"uncertainty": {"kind": "last_layer"}, "start": {"count": CALIBRATED}},
    "held": {"explore": {"restraints": [{**RESTRAINT, "reference": HELD}]}},
    "free": {},
}
# The strategies of each case, and the seeds, in the order in which they start.
PLAN = [
    (case, strategy, seed)
    for case, strategies in (
        ("alloy", ("ensemble", "random")),
        ("ethanol", ("ensemble", "random")),
        ("reaction", ("held", "free")),
        ("alloy", ("last_layer",)),
        ("ethanol", ("last_layer",)),
    )
    for strategy in strategies
    for seed in range(3)
]


def settings(case: str, strategy: str, seed: int, folder: Path, share: float, device: str) -> dict[str, Any]:
    """The configuration of a run. share: of steps and epochs, for a trial."""
    values: dict[str, Any] = {
        "start": {"structures": str(folder / f"{case}.extxyz"), "seed": seed, "count": COUNT},
        "explore": {},
        "select": {"count": COUNT},
        "label": {"workers": 1},
        "train": {
            "model": {"num_channels": 32, "num_layers": 1, "cutoff": 4.5},
            "data": {"seed": seed},
            "training": {"epochs": max(1, int(share * EPOCHS)), "seed": seed, "device": device},
        },
        "output": {"directory": str(folder / f"{case}-{strategy}-{seed}"), "page": False},
    }
    for more in (CASES[case].settings, STRATEGIES[strategy]):
        for section, entries in more.items():
            values[section] = values.get(section, {}) | entries
    explore = values["explore"]
    explore["steps"] = max(explore["every"], int(share * explore["steps"]))
    return values


# The work of one process


def work(case: str, strategy: str, seed: int, folder: Path, share: float, device: str, last: int) -> int:
    """Runs a round at a time up to the last, and scores each; returns the exit status of the run."""
    from torchmdx.learning.config import LearnConfig
    from torchmdx.learning.run import learn
    from torchmdx.training.config_file import make_as

    values = settings(case, strategy, seed, folder, share, device)
    for rounds in range(1, last + 1):
        config = make_as(LearnConfig, json.loads(json.dumps({**values, "stop": {"rounds": rounds}})))
        if status := learn(config):
            return status
        score(Path(config.output.directory), case, folder)
    return 0


def score(run: Path, case: str, folder: Path) -> None:
    """Measures the potentials of all rounds that have not been, if the test frames are there."""
    path = run / SCORES
    known = json.loads(path.read_text()) if path.exists() else {}
    if not all((folder / f"{case}.{name}.extxyz").exists() for name in CASES[case].tests):
        return
    labels = 0
    for place in sorted(run.glob("round-*")):
        if not (place / "train" / "done.json").exists():
            continue
        stages = {stage.parent.name: json.loads(stage.read_text()) for stage in place.glob("*/done.json")}
        labels += stages["label"]["result"]["labels"]
        if place.name in known:
            continue
        explored = stages.get("explore", {}).get("result", {})
        facts = {
            "labels": labels,
            "seconds": sum(stage["seconds"] for stage in stages.values()),
            "endings": explored.get("endings"),
            "uncertainty": explored.get("uncertainty"),
        }
        known[place.name] = [facts | row for row in _measured(place / "train" / "potential.safetensors", case, folder)]
        path.write_text(json.dumps(known))


def _measured(potential: Path, case: str, folder: Path) -> list[dict[str, Any]]:
    from benchmarks.learning_errors import barrier, errors

    return [barrier(potential)] if case == "reaction" else errors(potential, _tests(CASES[case], case, folder))


def _tests(of: Case, case: str, folder: Path) -> dict[str, Path]:
    return {name: folder / f"{case}.{name}.extxyz" for name in of.tests}


# All processes


def tasks(only: list[str], folder: Path) -> list[list[str]]:
    """Arguments of the processes, in the order in which they start: test frames first."""
    cases = [case for case in CASES if case in only]
    found = [["test", case, name] for case in cases for name in _tests(CASES[case], case, folder)]
    return found + [["work", case, strategy, str(seed)] for case, strategy, seed in PLAN if case in cases]


def run(options: argparse.Namespace) -> None:
    """Runs all that is not done, `workers` processes at a time, until the time is over."""
    from ase.io import write

    folder, began = options.folder, time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    for case in options.only.split(","):
        write(folder / f"{case}.extxyz", CASES[case].start())
    common = ["--folder", str(folder), "--share", str(options.share), "--cuda", options.cuda]
    common += ["--rounds", str(options.rounds)]
    listed = [
        Task("benchmarks.learning", [*words, *common], folder / f"{'-'.join(words).replace(' ', '')}.log")
        for words in tasks(options.only.split(","), folder)
    ]
    side_by_side.run(listed, options.workers, began + options.seconds, options.threads)
    print(f"{len(list(folder.glob('*/' + SCORES)))} runs have scores", flush=True)


def scores(folder: Path) -> list[dict[str, Any]]:
    """What has been measured of all runs, a row for each potential and set."""
    found = []
    for case, strategy, seed in PLAN:
        path = folder / f"{case}-{strategy}-{seed}" / SCORES
        if not path.exists():
            continue
        for name, measured in json.loads(path.read_text()).items():
            for one in measured:
                kind = "barrier" if case == "reaction" else "curve"
                key = {"kind": kind, "case": case, "strategy": strategy, "seed": seed, "round": int(name[-3:])}
                found.append(key | {"set": one.get("set", "scan")} | one)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "record", "test", "work"))
    parser.add_argument("names", nargs="*", help="of test and work, which run starts")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=540.0)
    parser.add_argument("--threads", type=int, default=1, help="of a process")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--share", type=float, default=1.0, help="of steps and epochs, for a trial")
    parser.add_argument("--cuda", default="", help="strategies that train and explore on the GPU: ensemble,random")
    options = parser.parse_args()
    if options.what == "run":
        run(options)
    elif options.what == "record":
        print(record.update("learning", summarized(scores(options.folder)), KEYS))
    elif options.what == "test":
        case, name = options.names
        path = options.folder / f"{case}.{name}.extxyz"
        if not path.exists():
            CASES[case].tests[name].write(path, options.share)
    else:
        case, strategy, seed = options.names
        device = "cuda" if strategy in options.cuda.split(",") else "cpu"
        sys.exit(work(case, strategy, int(seed), options.folder, options.share, device, options.rounds))


if __name__ == "__main__":
    main()
