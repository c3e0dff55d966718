"""Energy and forces on the CPU, search included: ours, ours with the C libraries as they come, the peer, in one run.

    python benchmarks/cpu.py [--peer] [--names dhfr,water216]

The same model, weights and structures as step.py, in every thread there is. Each side runs in a process of its own,
since memory and waiting threads are settled when a process starts; then again beside a program that keeps one processor
busy. ms: medians from NumPy positions to NumPy forces. force_error: relative, against the exact model in float64, where
that is affordable. Results go to cpu.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

# name: evaluations
CASES = {"alanine_dipeptide": 60, "chignolin": 30, "water216": 15, "dhfr": 5}
# What glibc and GNU's OpenMP do by themselves. The first names a default, which is a choice all the same.
AS_THEY_COME = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=7", "GOMP_SPINCOUNT": "300000"}
SIDES: dict[str, dict[str, str]] = {"torchmdx": {}, "libraries as they come": AS_THEY_COME, "torchmd-net": AS_THEY_COME}
EXACT_ATOMS = 700
BUSY_EVALUATIONS = 3


def ours(name: str) -> tuple[Callable[[], np.ndarray], np.ndarray | None]:
    """(run, exact forces if affordable)."""
    import step

    from torchmdx import evaluate
    from torchmdx.step import CapturedStep

    model, batch = step.potential(second=False), step.batch_of(name, 1)
    captured, positions = CapturedStep(model, batch), batch.positions.numpy()
    exact = None
    if batch.num_atoms <= EXACT_ATOMS:
        forces = evaluate(step.potential(second=False).double(), batch).forces
        assert forces is not None
        exact = forces.numpy()
    return lambda: captured(positions).forces, exact


def theirs(name: str) -> tuple[Callable[[], np.ndarray], None]:
    """torchmd-net as it comes, with our weights."""
    import peer_model
    import step

    model, batch = step.potential(second=False), step.batch_of(name, 1)
    config, box = model.config, batch.cell[0].float() if batch.pbc.any() else None
    most = min(64, int(batch.counts().max()))
    peer = peer_model.build(
        "eager", config.cutoff, config.num_channels, config.num_layers, config.num_radial, box, most
    )
    peer_model.copy_weights(model, peer)
    for parameter in peer.parameters():
        parameter.requires_grad_(False)

    def run() -> np.ndarray:
        moving = batch.positions.float().requires_grad_(True)
        _, forces = peer(batch.atomic_numbers, moving, batch.system_index, box)
        return np.asarray(forces.detach()) * float(model.scale)

    return run, None


def measure(side: str, name: str, count: int, forces_file: str) -> dict[str, Any]:
    """In a process of its own: times, and forces to compare."""
    run, exact = (theirs if side == "torchmd-net" else ours)(name)
    forces = [run() for _ in range(2)][-1]
    times = []
    for _ in range(count):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    if exact is not None and side == "torchmdx":
        np.save(forces_file, exact)
    error = None
    if Path(forces_file).exists():
        wanted = np.load(forces_file)
        error = float(np.linalg.norm(forces - wanted) / np.linalg.norm(wanted))
    return {"atoms": len(forces), "ms": round(float(np.median(times)) * 1e3, 2), "force_error": error}


@contextmanager
def another_program(busy: bool) -> Iterator[None]:
    """That uses one processor all the time."""
    if not busy:
        yield
        return
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as loop:
        try:
            yield
        finally:
            loop.kill()


def ask(side: str, name: str, count: int, forces_file: str) -> dict[str, Any]:
    """The row of one side and structure."""
    command = [sys.executable, "-W", "ignore", __file__, "--side", side, "--names", name]
    command += ["--evaluations", str(count), "--forces", forces_file]
    said = subprocess.run(command, env=os.environ | SIDES[side], capture_output=True, text=True, check=False)
    if said.returncode:
        return {"error": said.stderr.strip().splitlines()[-1][:300]}
    return dict(json.loads(said.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", default=",".join(CASES), help="of structures")
    parser.add_argument("--peer", action="store_true", help="time torchmd-net as well")
    parser.add_argument("--side", choices=SIDES, help="measure this one, in this process, and print it")
    parser.add_argument("--evaluations", type=int)
    parser.add_argument("--forces", help="file of exact forces")
    options = parser.parse_args()
    if options.side:
        print(json.dumps(measure(options.side, options.names, options.evaluations, options.forces)))
        return
    import record

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.names.split(","):
            for busy in (False, True):
                for side in SIDES if options.peer else list(SIDES)[:2]:
                    with another_program(busy):
                        count = BUSY_EVALUATIONS if busy else CASES[name]
                        row = ask(side, name, count, f"{folder}/{name}.npy")
                    rows.append({"system": name, "by": side, "busy": busy, **row})
                    print(rows[-1], flush=True)
    record.write("cpu", rows)


if __name__ == "__main__":
    main()
