"""Which backend searches a batch, and the search by that name."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable

from torchmdx.neighbors.backends import CpuSearch, Search, cell_list, torch_brute_force, torch_cluster, vesin
from torchmdx.neighbors.backends.frame import Pairs
from torchmdx.neighbors.edges import Edges
from torchmdx.runtime.c_library import c_library_state
from torchmdx.structures.system import Batch

BACKENDS = ("brute_force", "cell_list", "vesin", "torch_cluster", "triton_brute_force", "triton_cell_list")
# With this number of atoms in the largest system, bins are faster than all pairs on a GPU (measured on an H200).
CELL_LIST_FROM = 1500


def choose_backend(asked: str, batch: Batch) -> str:
    """The backend for "auto", or the one asked for. Raises ValueError or ImportError if it cannot search this batch."""
    on_gpu = batch.positions.device.type == "cuda"
    if asked == "auto":
        if on_gpu and importlib.util.find_spec("triton"):
            return "triton_cell_list" if int(batch.counts().max()) >= CELL_LIST_FROM else "triton_brute_force"
        found = (
            "cell_list" if cell_list.available() else "vesin" if importlib.util.find_spec("vesin") else "brute_force"
        )
        return "brute_force" if on_gpu else found
    if asked in ("vesin", "cell_list") and on_gpu:
        raise ValueError(f"backend {asked!r} searches on the CPU, got positions on {batch.positions.device}")
    if asked == "cell_list" and not cell_list.available():
        raise ImportError(f"backend 'cell_list' needs a compiled library: {c_library_state('cell_list')}")
    if asked.startswith("triton") and not on_gpu and os.environ.get("TRITON_INTERPRET") != "1":
        raise ValueError(f"backend {asked!r} needs positions on a CUDA GPU, got {batch.positions.device}")
    if asked == "torch_cluster":
        torch_cluster.require(batch)
    return asked


def make_search(backend: str, batch: Batch, cutoff: float, skin: float, edges: Edges) -> Search:
    """The search by name, with its scratch, filling `edges`."""
    if backend.startswith("triton"):
        from torchmdx.neighbors.single_pass import OnePassBruteForce, OnePassCellList

        made = OnePassCellList if backend == "triton_cell_list" else OnePassBruteForce
        return made(batch, cutoff, skin, edges)
    ways: dict[str, Callable[[Batch, float], Pairs]] = {
        "brute_force": torch_brute_force,
        "vesin": vesin.VesinPairs(),
        "torch_cluster": torch_cluster.pairs,
    }
    ways["cell_list"] = ways["vesin" if importlib.util.find_spec("vesin") else "brute_force"]
    direct = cell_list.CellList(batch, cutoff + skin, edges) if backend == "cell_list" else None
    return CpuSearch(batch, cutoff, skin, edges, ways[backend], direct)
