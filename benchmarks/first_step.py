"""Times the first step of a process: kernels on disk, or compiled in parallel or one after another.

    python -m benchmarks.first_step [--names chignolin,dhfr] [--one-after-the-other]

The potentials of benchmarks/step.py; each first step has its own process and its own folder of kernels. setup_s: from
making the step to its first forces, with imports that happen then, without the start of CUDA; it includes capture_s.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

import torch

from benchmarks import record, step
from torchmdx.runtime import compile_cache, kernel_compile
from torchmdx.step.captured_step import CapturedStep

# "on disk" uses the kernels that "side by side", run just before it, has compiled.
WAYS, ALSO = ("side by side", "on disk"), "one after the other"
NAMES = ("alanine_dipeptide", "chignolin", "dhfr", "water1000")


def first_step(name: str, way: str, second: bool) -> None:
    """Measures in this process, and prints the times."""
    if way == ALSO:
        kernel_compile._triton_is_supported = lambda: False  # type: ignore[assignment]
    model = step.potential(second).cuda()
    batch = step.batch_of(name, 1)
    torch.ones(8, 8, device="cuda") @ torch.ones(8, 8, device="cuda")
    torch.cuda.synchronize()
    start = time.perf_counter()
    captured = CapturedStep(model, batch, mode="graph")
    captured(batch.positions.numpy())
    took = time.perf_counter() - start
    capture = captured.report().capture_s
    print(json.dumps({"atoms": batch.num_atoms, "setup_s": round(took, 2), "capture_s": round(capture, 2)}))


def measured(name: str, way: str, second: bool, kernels: str) -> dict[str, float]:
    """`first_step` in a new process with its kernels in a folder. Raises RuntimeError with the end of its errors."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "benchmarks.first_step",
        "--one",
        name,
        way,
        "--model",
        "tensornet2" if second else "tensornet",
    ]
    folders = {"TRITON_CACHE_DIR": f"{kernels}/triton", compile_cache.VARIABLE: f"{kernels}/cuda"}
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | folders, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the first step of {name}, {way}, must end well, got {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", default=",".join(NAMES))
    parser.add_argument("--model", choices=("tensornet", "tensornet2"), default="tensornet")
    parser.add_argument("--one-after-the-other", action="store_true", help="also kernels compiled one after the other")
    parser.add_argument("--one", nargs=2, metavar=("NAME", "WAY"), help="this one, in this process")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("first_step.py needs a CUDA GPU, got none")
    second = options.model == "tensornet2"
    if options.one:
        first_step(*options.one, second)
        return
    rows = []
    for name in options.names.split(","):
        with tempfile.TemporaryDirectory() as kept, tempfile.TemporaryDirectory() as empty:
            ways = [(way, kept) for way in WAYS] + ([(ALSO, empty)] if options.one_after_the_other else [])
            for way, folder in ways:
                rows.append({"system": name, "model": options.model, "way": way} | measured(name, way, second, folder))
                print(rows[-1], flush=True)
                record.write("first_step", rows)


if __name__ == "__main__":
    main()
