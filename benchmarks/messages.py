"""Times messages of many atoms in CUDA C++ and in Triton, in turn in one process, on an H100 or H200.

    python -m benchmarks.messages [--systems NAME,NAME]

ms: all kernels with forces, replayed from a CUDA graph without the search; messages_ms, gradient_ms: of both layers, by
a profile. force_error: relative, against the exact model in float64, in blocks. Results go to messages.json.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import statistics
from pathlib import Path
from typing import Any

import torch

from benchmarks.kernels import Case, kernel_times, median_ms
from benchmarks.record import write
from torchmdx import Potential, load
from torchmdx.engines.gpu import engine
from torchmdx.engines.gpu.atom_tiles import TileChain
from torchmdx.engines.gpu.chain_walks import ChainWalks
from torchmdx.evaluation.blocks import in_blocks
from torchmdx.evaluation.derivatives import evaluate

SYSTEMS = "dhfr,batch1024,water24000,water98304"
TURNS = 3


class TritonMessages(TileChain):
    """The launches of many atoms with messages in Triton."""

    _walk_messages = ChainWalks._walk_messages
    _walk_messages_gradient = ChainWalks._walk_messages_gradient


CHAINS = {"Triton": TritonMessages, "CUDA C++": TileChain}


def _always(chain: type[TileChain], buffers: Any) -> type[TileChain]:
    return chain


def measure(case: Case) -> list[dict[str, Any]]:
    """A row for each."""
    wide = copy.deepcopy(case.model).double()
    blocked = in_blocks(wide.network)
    assert blocked is not None
    exact = evaluate(wide.with_network(blocked), case.batch, case.edges).forces
    assert exact is not None
    engine.allocate(case.fast, case.batch, case.edges.capacity, stress=False)
    times: dict[str, list[float]] = {by: [] for by in CHAINS}
    rows = []
    for turn in range(TURNS):
        for by, chain in CHAINS.items():
            case.fast.chain_type = functools.partial(_always, chain)  # type: ignore[method-assign]
            graph = case.graph()
            times[by].append(median_ms(graph.replay))
            if turn + 1 < TURNS:
                continue
            graph.replay()
            assert case.fast.buffers is not None
            found = case.fast.buffers.forces
            row = dict(system=case.name, atoms=case.batch.num_atoms, edges=case.edges.capacity, by=by)
            row["ms"] = round(statistics.median(times[by]), 4)
            row["force_error"] = float((found - exact).norm() / exact.norm())
            each = kernel_times(case)
            for key, wanted in (("messages_ms", False), ("gradient_ms", True)):
                named = (v for k, v in each.items() if k.startswith("messages") and ("gradient" in k) == wanted)
                row[key] = round(sum(named), 4)
            rows.append(row)
            print(json.dumps(row), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", default=SYSTEMS)
    parser.add_argument("--structures", type=Path, default=Path(__file__).parent / "structures")
    options = parser.parse_args()
    model, rows = load("organic-1").requires_grad_(False).cuda(), list[dict[str, Any]]()
    assert isinstance(model, Potential)
    for name in options.systems.split(","):
        rows += measure(Case(name, model, options.structures))
        torch.cuda.empty_cache()
        write("messages", rows)


if __name__ == "__main__":
    main()
