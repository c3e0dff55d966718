"""Labels every file of make_geometries.py with GFN2-xTB by `torchmdx label`, several files at a time.

python label.py --geometries geometries --output labelled --deadline 540

Files are labelled in order of importance. Finished files are skipped; a file interrupted by a deadline or a kill
continues from its journal. times.csv has seconds, frames and exit status of each.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ORDER = (
    "(val|test)-(?!md)",
    "(val|test)-md",
    "train-(clusters|dimers|ion|protons|hydrogens)",
    "train-molecules",
    "train-(yet)?more",
    "heldout",
    "train-md300-c",
    "train-md",
)
DYNAMICS = re.compile(r"-md(\d+)-")
SAMPLE = [
    "--sample",
    "md",
    "--count",
    "12",
    "--timestep",
    "1",
    "--spacing",
    "10",
    "--equilibration",
    "60",
    "--friction",
    "20",
]
GRACE = 15.0  # s between asking a run to stop and killing it
FIELDS = ("file", "status", "seconds", "frames")


def importance(path: Path) -> tuple[int, str]:
    """Place in the order; files of dynamics of one kind by their chunk, temperatures in turn."""
    rank = next(k for k, pattern in enumerate(ORDER) if re.match(pattern, path.stem))
    return rank, path.stem.rsplit("-", 1)[1] if DYNAMICS.search(path.stem) else path.stem


def command(path: Path, output: Path, workers: int) -> list[str]:
    """The call of `torchmdx label`."""
    parts = [
        sys.executable,
        "-m",
        "torchmdx.commands.cli",
        "label",
        str(path),
        "-o",
        str(output),
        "--calculator",
        "gfn2-xtb",
    ]
    parts += ["--workers", str(workers), "--timeout", "120"]
    dynamics = DYNAMICS.search(path.stem)
    if dynamics:
        parts += [*SAMPLE, "--temperature", dynamics[1], "--seed", str(sum(path.stem.encode()))]
    return parts


class Driver:
    """Runs commands until there are no more or time is up."""

    def __init__(self, output: Path, workers: int, end: float) -> None:
        self._output = output
        self._workers = workers
        self._end = end

    def do(self, path: Path) -> tuple[str, str, float, int]:
        """Labels a file; its name, exit status, seconds and frames."""
        target = self._output / path.name
        began = time.monotonic()
        if target.exists():
            return path.stem, "there", 0.0, _frames(target)
        if began >= self._end:
            return path.stem, "no time", 0.0, 0
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        with (self._output / f"{path.stem}.log").open("w") as log:
            process = subprocess.Popen(command(path, target, self._workers), stdout=log, stderr=log, env=env)
            try:
                status = str(process.wait(self._end - began))
            except subprocess.TimeoutExpired:
                status = "stopped"
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(GRACE)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        return path.stem, status, time.monotonic() - began, _frames(target) if target.exists() else 0


def _frames(path: Path) -> int:
    with path.open() as file:
        return sum("Properties=" in line for line in file)


def main() -> None:
    """Labels, and writes times.csv."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--geometries", type=Path, default=Path("geometries"))
    parser.add_argument("--output", type=Path, default=Path("labelled"))
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--together", type=int, help="files at a time; default: one for every four cores")
    parser.add_argument("--deadline", type=float, default=1e9, help="seconds after which no more is done")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    files = sorted(args.geometries.glob("*.xyz"), key=importance)
    together = args.together or max(1, args.cores // 4)
    driver = Driver(args.output, max(1, args.cores // together), time.monotonic() + args.deadline)
    began = time.monotonic()
    with ThreadPoolExecutor(together) as pool, (args.output / "times.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(FIELDS)
        total = 0
        for name, status, seconds, frames in pool.map(driver.do, files):
            writer.writerow((name, status, f"{seconds:.1f}", frames))
            file.flush()
            total += frames
            print(f"{time.monotonic() - began:6.0f} s {name} {status} {seconds:.1f} s, {frames} frames", flush=True)
    print(f"{total} frames with labels after {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
