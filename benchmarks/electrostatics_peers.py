"""Ewald sums and meshes of torchmdx and those of nvalchemi-toolkit-ops and torch-pme, of the same charges.

    python -m benchmarks.electrostatics_peers [FILE] [--names water216,peptide_in_water,water8000] [--by torch-pme]
        [--compile] [--seconds 150]

Energy, forces and the gradient in the charges, of all 48 sets of charges that the TensorNet2 in FILE predicts (random
weights without it) and of a single one, their mean; plain 1/r without damping, float32. Every library gets the list of
pairs ready and exact, the splitting of `Splitting.of` for an accuracy of 1e-5, and of several cutoffs the one with
which it is fastest. ms: medians of CUDA events. force_error, charge_error: of forces and of the gradient in the
charges, relative to an Ewald sum of torchmdx in float64 with an accuracy of 1e-9.

Best modes. torchmdx: its kernels in a CUDA graph. nvalchemi-toolkit-ops: direct outputs, everything that depends on
the cell alone computed before, in a CUDA graph; it takes one set of charges, so 48 are 48 copies of the system. Its
mesh is the smallest with an error of 1e-5, with splines of order 5, the default (of order 6, rounding is larger).
torch-pme: autograd, its vectors within a sphere, without its checks of arguments, in a CUDA graph where it reads
nothing on the host (Ewald), compiled if --compile is given and that is faster; meshes with 7 (PME) and 5 (P3M) nodes,
powers of two. Rounding keeps some meshes less exact than 1e-5. What does not fit into memory has an `error`.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks import electrostatics, peer_model, record, step
from benchmarks.electrostatics_libraries import ACCURACY, DEVICE, GPU, LIBRARIES, Run, Sum

NAMES = "water216,peptide_in_water,water8000" if GPU else "water64"


def timed(run: Run, *, captured: bool) -> tuple[float, str]:
    """(ms, mode) of the faster of launches one by one and, if `captured`, a CUDA graph."""
    if not GPU:
        start = time.perf_counter()
        run()
        return (time.perf_counter() - start) * 1e3, "CPU"
    from torchmdx.step.graph import Graph

    run()
    torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    torch.cuda.synchronize()
    repeats = int(min(30, max(3, 0.3 / (time.perf_counter() - start))))
    eager = peer_model.milliseconds(run, repeats, 2), "launched"
    if not captured:
        return eager
    try:
        return min(eager, (peer_model.milliseconds(Graph(run, torch.device(DEVICE)).replay, repeats, 2), "graph"))
    except Exception as error:
        print("no graph:", str(error)[:150], flush=True)
        torch.cuda.synchronize()
        return eager


def row_of(given: Sum, by: str, method: str, cutoff: float | None, *, compiled: bool) -> dict[str, Any]:
    """The first size that is exact enough, or after which the error stays: that of rounding."""
    best: tuple[tuple[float, float], str, Run] | None = None
    for size, run in LIBRARIES[by][0](given, method, cutoff):
        errors = given.errors(run())
        stays = best is not None and errors[0] > 0.7 * best[0][0]
        if best is None or errors[0] < best[0][0]:
            best = errors, size, run
        if errors[0] <= ACCURACY or stays:
            break
    assert best is not None
    errors, size, run = best
    captured = not getattr(run, "reads_host", False)
    ms, mode = timed(run, captured=captured)
    if compiled and hasattr(run, "energy_of"):
        energy_of = torch.compile(run.energy_of, dynamic=False)
        faster = lambda: run(energy_of)  # type: ignore[call-arg]  # noqa: E731
        assert given.errors(faster())[0] < 2 * errors[0] + 1e-6
        ms, mode = min((ms, mode), (timed(faster, captured=captured)[0], "compiled"))
    return {"ms": ms, "mode": mode, "size": size, "force_error": errors[0], "charge_error": errors[1]}


def rows_of(given: Sum, name: str, libraries: list[str], compiled: bool, end: float) -> Iterator[dict[str, Any]]:
    for by in libraries:
        methods = LIBRARIES[by][1]
        if by == "torchmdx" and not GPU and os.environ.get("TRITON_INTERPRET") != "1":
            continue
        for method, cutoffs in methods.items():
            start = {"system": name, "atoms": given.batch.num_atoms, "sets": given.charges.shape[1]}
            start |= {"by": by, "method": method}
            found: list[dict[str, Any]] = []
            for cutoff in cutoffs:
                if time.perf_counter() > end:
                    break
                try:
                    found.append(row_of(given, by, method, cutoff, compiled=compiled and cutoff == cutoffs[-1]))
                except (MemoryError, RuntimeError, ValueError, TypeError) as error:
                    print(by, method, cutoff, type(error).__name__, str(error)[:300], flush=True)
                    found.append({"error": f"{type(error).__name__}: {error}"[:200]})
                if GPU:
                    torch.cuda.empty_cache()
            if found:
                yield start | min(found, key=lambda row: row.get("ms", math.inf))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?")
    parser.add_argument("--names", default=NAMES)
    parser.add_argument("--by", default=",".join(LIBRARIES))
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--seconds", type=float, default=150.0, help="after which no other sum is begun")
    options = parser.parse_args()
    potential, end = electrostatics.charged(options.file), time.perf_counter() + options.seconds
    weights, rows = electrostatics.coulomb_of(potential).weights, []
    for name, single in itertools.product(options.names.split(","), (True, False)):
        batch = step.batch_of(name, 1).to(DEVICE)
        charges = electrostatics.charges_of(potential, batch)
        charges = charges @ weights.to(charges)[:, None] if single else charges * weights.to(charges).sqrt()
        for row in rows_of(Sum(batch, charges), name, options.by.split(","), options.compile, end):
            row["potential"] = Path(options.file).stem if options.file else "random weights"
            print({k: f"{v:.3g}" if isinstance(v, float) else v for k, v in row.items()}, flush=True)
            rows.append(row)
        if GPU:
            record.update("electrostatics_peers", rows, ("system", "sets", "by", "method"))


if __name__ == "__main__":
    main()
