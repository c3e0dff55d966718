"""`torchmdx neighbors`: how many neighbours the atoms of a structure have, and what their list costs."""

from __future__ import annotations

import argparse
from typing import Any

import torch

from torchmdx.commands.options import add_model_option
from torchmdx.structure_files import read_structures

BARS = 40


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "neighbors",
        help="count neighbours: the busiest atom, a histogram, the list's memory",
        description="Searches the neighbours of a structure's atoms, periodic images included.",
    )
    parser.add_argument("file", help="the structure, in any format that ASE reads")
    parser.add_argument("--cutoff", type=float, help="radius in Å (default: what the potential sees)")
    add_model_option(parser)
    parser.add_argument("--skin", type=float, default=0.0, help="Å added to the radius (default: 0)")
    parser.add_argument("--index", default="-1", help="which structure of the file (default: the last)")
    parser.add_argument("--backend", default="auto", help="search to use (default: the fastest for the device)")
    parser.add_argument("--device", metavar="NAME", help="cpu, cuda or cuda:1 (default: cuda if there is one)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from torchmdx.checkpoints.save_load import load
    from torchmdx.neighbors.search import EdgeSearch
    from torchmdx.runtime.devices import choose_device
    from torchmdx.system import Batch, System

    if options.cutoff is not None and options.model is not None:
        raise ValueError(
            f"the cutoff is --cutoff or that of --model, got both: {options.cutoff:g} Å and {options.model}"
        )
    cutoff = load(options.model).cutoff if options.cutoff is None else options.cutoff
    for atoms in read_structures(options.file, options.index):
        system = System.from_ase(atoms, dtype=torch.float32, device=choose_device(options.device))
        search = EdgeSearch(cutoff, skin=options.skin, backend=options.backend)
        edges = search.allocate(Batch.of(system))
        counts = (edges.row_ptr[1:] - edges.row_ptr[:-1]).cpu()
        radius = f"{cutoff + options.skin:g} Å"
        print(f"{atoms.get_chemical_formula()}: {system.num_atoms} atoms, {int(edges.num_edges)} edges within {radius}")
        print(f"search: {search.backend} on {system.positions.device}")
        if not system.num_atoms:
            continue
        busiest = int(counts.argmax())
        print(
            f"neighbours of an atom: {counts.double().mean():.1f} on average, {int(counts.min())} at least, "
            f"{int(counts.max())} at most (atom {busiest}, {atoms.symbols[busiest]})"
        )
        _print_histogram(counts)
        tensors = (edges.row_ptr, edges.source, edges.target, edges.shifts)
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        spare = edges.capacity / max(int(edges.num_edges), 1) - 1
        print(f"capacity: {edges.capacity} edges ({spare:.0%} head-room), {size / 2**20:.2f} MiB")
    return 0


def _print_histogram(counts: torch.Tensor) -> None:
    """Atoms by number of neighbours, in at most twelve steps."""
    low, high = int(counts.min()), int(counts.max())
    width = max(1, -(-(high - low + 1) // 12))
    steps = torch.bincount((counts - low) // width)
    for k, number in enumerate(steps.tolist()):
        first, last = low + k * width, min(low + (k + 1) * width - 1, high)
        label = f"{first}" if first == last else f"{first}-{last}"
        bar = "#" * round(BARS * number / max(1, int(steps.max())))
        print(f"  {label:>9}  {number:>7}  {bar}")
