"""Times neighbour searches: torchmdx's, captured, and those of other packages, in one run.

    python -m benchmarks.search [--peers] [names ...]
    python -m benchmarks.search --batches [--peers]

Milliseconds for a full list with shifts, cutoff 5 Å, float32: medians of CUDA events after warm-up. --batches: 32,767
particles in all, in 1 to 1,024 systems without periodic directions, at a density of 64 neighbours within the cutoff (of
particles that are not close to the surface); results go to search_batches.json.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks import record, systems
from benchmarks.peer_model import milliseconds
from torchmdx import Batch, System
from torchmdx.neighbors.search import EdgeSearch

CUTOFF = 5.0
NAMES = ("water216", "water1000", "water2000", "water8000", "water32768", "water333000")


PARTICLES, NEIGHBOURS = 32767, 64
BATCHES = tuple(2**k for k in range(11))


def captured(run: Callable[[], Any]) -> Callable[[], None]:
    stream = torch.cuda.Stream()
    # Two updates of one search must not overlap.
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def batch_of(name: str, copies: int = 1) -> Batch:
    numbers, positions, cell = systems.load(name)
    system = System.create(
        positions, numbers, cell, pbc=None if cell is None else True, dtype=torch.float32, device="cuda"
    )
    return Batch.from_systems([system] * copies)


def ours(batch: Batch, backend: str, skin: float = 0.0) -> dict[str, Any]:
    search = EdgeSearch(CUTOFF, backend=backend, skin=skin)
    edges = search.allocate(batch)
    replay = captured(lambda: search.update(batch.positions, batch.cell))
    return {"by": f"torchmdx {backend}" + (f" skin {skin}, nothing moved" if skin else ""), "ms": milliseconds(replay),
            "edges": int(edges.num_edges)}  # fmt: skip


def peers(batch: Batch) -> list[dict[str, Any]]:
    from nvalchemiops.torch.neighbors import neighbor_list
    from torchmdnet.models.utils import OptimizedDistance

    rows, positions, box = [], batch.positions, batch.cell[0]

    def measure(label: str, run: Callable[[], Any], graph: bool) -> None:
        try:
            rows.append({"by": label, "ms": milliseconds(captured(run) if graph else run)})
        except Exception as error:
            rows.append({"by": label, "error": str(error)[:120]})
            torch.cuda.synchronize()

    for strategy in (["brute"] if len(positions) < 40000 else []) + ["cell"]:
        search = OptimizedDistance(
            0.0, CUTOFF, max_num_pairs=-80, return_vecs=True, loop=False, strategy=strategy, resize_to_fit=False,
            box=box, long_edge_index=False,
        ).cuda()  # fmt: skip
        measure(f"torchmd-net {strategy}", lambda search=search: search(positions), True)
    pbc = torch.ones(1, 3, dtype=torch.bool, device="cuda")
    for method in ["cell_list", "cluster_tile"] + (["naive"] if len(positions) < 40000 else []):
        measure(
            f"nvalchemi {method}",
            lambda method=method: neighbor_list(
                positions, CUTOFF, cell=box[None], pbc=pbc, method=method, max_neighbors=80, return_distances=False
            ),
            False,
        )
    return rows


def uniform(num_systems: int, device: str = "cuda") -> Batch:
    """PARTICLES uniformly distributed in cubes, as equally as possible."""
    rng, density = np.random.default_rng(0), NEIGHBOURS / (4 / 3 * np.pi * CUTOFF**3)
    counts = np.full(num_systems, PARTICLES // num_systems)
    counts[: PARTICLES % num_systems] += 1
    return Batch.from_systems(
        [
            System.create(
                rng.random((count, 3)) * np.cbrt(count / density), [1] * count, dtype=torch.float32, device=device
            )
            for count in counts
        ]
    )


def peers_of_batches(batch: Batch) -> list[dict[str, Any]]:
    """torchmd-net's searches, with room for all neighbours."""
    from torchmdnet.models.utils import OptimizedDistance

    rows, most = [], busiest(batch)
    for strategy in ("brute", "cell"):
        search = OptimizedDistance(
            0.0, CUTOFF, max_num_pairs=-most, return_vecs=True, loop=False, strategy=strategy, resize_to_fit=False,
            long_edge_index=False,
        ).cuda()  # fmt: skip
        try:
            run = captured(lambda search=search: search(batch.positions, batch.system_index))
            rows.append({"by": f"torchmd-net {strategy}", "ms": milliseconds(run), "room": most})
        except Exception as error:
            rows.append({"by": f"torchmd-net {strategy}", "error": str(error)[:120]})
            torch.cuda.synchronize()
    return rows


def busiest(batch: Batch) -> int:
    """The largest number of neighbours of a particle."""
    edges = EdgeSearch(CUTOFF).allocate(batch)
    return int(edges.row_ptr.diff().max())


def sweep_batches(with_peers: bool) -> None:
    rows = []
    for num_systems in BATCHES:
        batch = uniform(num_systems)
        found = [ours(batch, backend) for backend in ("triton_brute_force", "triton_cell_list")]
        for row in found + (peers_of_batches(batch) if with_peers else []):
            rows.append({"systems": num_systems, "atoms": PARTICLES, **row})
            print(rows[-1], flush=True)
    print(record.write("search_batches", rows))


def on_the_cpu(name: str) -> list[dict[str, Any]]:
    """torchmdx and vesin alone, on the same threads: best of ten, ms."""
    from vesin import NeighborList

    numbers, positions, cell = systems.load(name)
    batch = Batch.from_systems([System.create(positions, numbers, cell, True)])
    search = EdgeSearch(CUTOFF, backend="vesin")
    search.allocate(batch)
    ways: dict[str, Callable[[], Any]] = {"torchmdx vesin (CPU)": lambda: search.update(batch.positions)}
    for order in (True, False):
        alone = NeighborList(cutoff=CUTOFF, full_list=True, sorted=order)
        label = f"vesin alone, {'' if order else 'not '}sorted (CPU)"
        ways[label] = lambda alone=alone: alone.compute(positions, cell, True, "ijS")
    rows = []
    for label, run in ways.items():
        times = []
        for _ in range(10):
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        rows.append({"by": label, "ms": min(times) * 1e3})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--batches", action="store_true", help="batches of one number of particles instead")
    options = parser.parse_args()
    if options.batches:
        sweep_batches(options.peers)
        return
    rows: list[dict[str, Any]] = []

    def add(name: str, atoms: int, found: dict[str, Any]) -> None:
        rows.append({"system": name, "atoms": atoms, **found})
        print(rows[-1], flush=True)

    for name in ("water1000", "water8000"):
        for row in on_the_cpu(name):
            add(name, 3 * int(name.removeprefix("water")), row)
    for name in options.names if torch.cuda.is_available() else []:
        batch = batch_of(name)
        for backend in (["triton_brute_force"] if batch.num_atoms < 12000 else []) + ["triton_cell_list"]:
            add(name, batch.num_atoms, ours(batch, backend))
            if batch.num_atoms in (648, 3000, 98304):
                add(name, batch.num_atoms, ours(batch, backend, skin=0.5))
        for row in peers(batch) if options.peers else []:
            add(name, batch.num_atoms, row)
    if torch.cuda.is_available():
        batch = batch_of("alanine_dipeptide", 1024)
        add("1024 x alanine dipeptide", batch.num_atoms, ours(batch, "triton_brute_force"))
    print(record.write("search", rows))


if __name__ == "__main__":
    main()
