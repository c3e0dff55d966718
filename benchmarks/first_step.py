"""Times the first step of a process, and tells where its seconds go.

    python -m benchmarks.first_step [FOLDER] [--rows organic-1/chignolin,aceff-2.0/chignolin] [--ways fresh,disk]

FOLDER (or $RELEASED_POTENTIALS): as for benchmarks/released.py. Each first step has a process of its own. fresh: with
an empty folder of kernels; disk: with those that "fresh", run just before, has compiled; pool: the first two results of
a `StepPool` in mode "auto" with an empty folder, the first of which need not wait for kernels.

setup_s: from making a step to its first forces, with the imports that happen then, without the start of CUDA. It is the
sum of tables_s (filter tables), cuda_s (kernels of CUDA C++: compiled, loaded, and weights packed for them), triton_s
(Triton's kernels compiled), capture_s, audit_s and other_s. Before it: import_torch_s, import_s (torchmdx), start_s
(CUDA's start and a product), load_s (the potential). first_s, second_s: of a pool.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROWS = "organic-1/alanine_dipeptide,organic-1/chignolin,organic-1/dhfr,aceff-2.0/alanine_dipeptide,aceff-2.0/chignolin"
WAYS = ("fresh", "disk", "pool")
FIRST = "benchmarks.first_step"


class Clock:
    """Seconds of parts of a run, each without the parts inside of it, in one thread."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._part, self._since = "other", time.perf_counter()

    def switch(self, part: str) -> str:
        """Counts the time until now for the current part, and the time from now on for another; returns the former."""
        now, before = time.perf_counter(), self._part
        self.seconds[before] = self.seconds.get(before, 0.0) + now - self._since
        self._part, self._since = part, now
        return before

    def watch(self, owner: Any, name: str, part: str) -> None:
        """Counts the time of a function for a part."""
        function = getattr(owner, name)

        def timed(*args: Any, **options: Any) -> Any:
            before = self.switch(part)
            try:
                return function(*args, **options)
            finally:
                self.switch(before)

        setattr(owner, name, timed)


def first_step(potential: str, name: str, way: str) -> dict[str, Any]:
    """Measures in this process."""
    clock = Clock()
    clock.switch("import_torch")
    import torch

    clock.switch("import")
    import torchmdx
    from torchmdx.engines.gpu import engine
    from torchmdx.runtime import kernel_compile
    from torchmdx.step.captured_step import CapturedStep
    from torchmdx.step.graph import Graph
    from torchmdx.step.pool import StepPool

    clock.switch("start")
    torch.ones(8, 8, device="cuda") @ torch.ones(8, 8, device="cuda")
    torch.cuda.synchronize()
    clock.switch("load")
    from benchmarks import released_systems

    system = torchmdx.System.from_ase(released_systems.structure(name))
    model = torchmdx.load(potential, dtype=torch.float32, device="cuda")
    clock.switch("other")
    before = {f"{part}_s": clock.seconds.pop(part) for part in list(clock.seconds) if part != "other"}
    clock.seconds.clear()
    if way == "pool":
        return before | of_pool(StepPool(model), system)
    clock.watch(engine, "table_of", "tables")
    clock.watch(engine, "_take", "cuda")
    clock.watch(kernel_compile._MissingKernels, "compile", "triton")
    clock.watch(Graph, "__init__", "capture")
    clock.watch(CapturedStep, "_judge", "audit")
    step = CapturedStep(model, system, mode="graph")
    step(system.positions.numpy())
    clock.switch("other")
    parts = {f"{part}_s": seconds for part, seconds in clock.seconds.items()}
    return before | {"setup_s": sum(parts.values())} | parts | {"engine": step.report().engine}


def of_pool(pool: Any, system: Any) -> dict[str, Any]:
    """Seconds of the first two results, and what the first one says of itself."""
    found: dict[str, Any] = {}
    for result in ("first", "second"):
        start = time.perf_counter()
        pool(system)
        found[f"{result}_s"] = time.perf_counter() - start
        found[f"{result}_engine"] = pool.report().engine
    return found


def measured(row: str, way: str, kernels: str, folder: Path | None) -> dict[str, Any]:
    """`first_step` in a new process with its kernels in a folder. Raises RuntimeError with the end of its errors."""
    from benchmarks.released_systems import find
    from torchmdx.runtime import compile_cache

    potential, _, name = row.partition("/")
    file = find(folder, potential)
    if file is None:
        raise RuntimeError(f"{potential} must be in the folder of released potentials, got {folder}")
    command = [sys.executable, "-W", "ignore", "-m", FIRST, "--one", str(file), name, way]
    folders = {"TRITON_CACHE_DIR": f"{kernels}/triton", compile_cache.VARIABLE: f"{kernels}/cuda"}
    folders["CUDA_CACHE_PATH"] = f"{kernels}/driver"  # NVRTC keeps code there too, from CUDA 12.9 on
    ahead = {"TORCHMDX_STANDBY": "1"} if way == "pool" else {}
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | folders | ahead, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the first step of {row}, {way}, must end well, got {done.stderr[-2000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    rounded = {key: round(value, 2) if isinstance(value, float) else value for key, value in found.items()}
    return {"potential": potential, "system": name, "way": way} | rounded


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=os.environ.get("RELEASED_POTENTIALS"))
    parser.add_argument("--rows", default=ROWS)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--one", nargs=3, metavar=("FILE", "NAME", "WAY"), help="this one, in this process")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(first_step(*options.one)))
        return
    from benchmarks import record

    rows = []
    folder = None if options.folder is None else Path(options.folder)
    for row in options.rows.split(","):
        with tempfile.TemporaryDirectory() as kept, tempfile.TemporaryDirectory() as empty:
            for way in options.ways.split(","):
                rows.append(measured(row, way, empty if way == "pool" else kept, folder))
                print(rows[-1], flush=True)
                record.write("first_step", rows)


if __name__ == "__main__":
    main()
