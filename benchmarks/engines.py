"""Times torchmdx's own ways to evaluate a step: in PyTorch or in fused kernels, launched one by one or as a CUDA graph.

    python -m benchmarks.engines [--names alanine_dipeptide,dhfr]

The models of step.py, float32, search included; results go to engines.json. exact: the reference network in PyTorch.
pairs: the network on pairs, as for training. fused: the kernels. launched_ms and graph_ms: medians of CUDA events, with
and without the graph; launched_ms includes the time in which the GPU waits for the host.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

from benchmarks import peer_model, record
from benchmarks import step as step_benchmark
from torchmdx import Batch, Potential
from torchmdx.step.captured_step import CapturedStep
from torchmdx.step.graph import Graph

NAMES = ("alanine_dipeptide", "testosterone", "chignolin", "dhfr", "water1000", "water8000")
MOST_EXACT = 3000  # atoms; the reference network takes 1 MB and more for each
REPEATS = 30
ENGINES = ("exact", "pairs", "fused")


def measure(engine: str, model: Potential, batch: Batch) -> dict[str, Any]:
    step = CapturedStep(model, batch, mode="eager", engine=engine)
    step(batch.positions.numpy())  # compiles, and grows what is too small
    found: dict[str, Any] = {"engine": step.engine.name}

    def launch() -> None:
        step._launch("host")

    found["launched_ms"] = round(peer_model.milliseconds(launch, REPEATS, 5), 4)
    graph = Graph(launch, step.device)
    return found | {"graph_ms": round(peer_model.milliseconds(graph.replay, REPEATS, 5), 4), "nodes": graph.num_nodes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", default=",".join(NAMES))
    options = parser.parse_args()
    model, rows = step_benchmark.potential(False).cuda(), []
    for name in options.names.split(","):
        batch = step_benchmark.batch_of(name, 1)
        for kind in ENGINES:
            if kind == "exact" and batch.num_atoms > MOST_EXACT:
                continue
            try:
                found = measure(kind, model, batch)
            except Exception as error:
                found = {"error": f"{type(error).__name__}: {error}"[:300]}
            rows.append({"system": name, "atoms": batch.num_atoms, "by": kind, **found})
            print(rows[-1], flush=True)
            torch.cuda.empty_cache()
        record.write("engines", rows)


if __name__ == "__main__":
    main()
