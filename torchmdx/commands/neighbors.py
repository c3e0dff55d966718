"""`torchmdx neighbors`: number of neighbours of the atoms of a structure, and memory of the neighbour list."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

from torchmdx.commands.options import add_device, add_index, add_model_option, coulomb_treatment
from torchmdx.runtime.wording import counted


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "neighbors",
        help="count neighbours: histogram, maximum, memory of the list",
        description="Counts the neighbours of the atoms of a structure, periodic images included.",
    )
    parser.add_argument("file", metavar="FILE", help="structure file, in any format that ASE reads")
    parser.add_argument("--cutoff", type=float, metavar="Å", help="cutoff radius, Å (default: that of the potential)")
    add_model_option(parser)
    parser.add_argument(
        "--skin", type=float, default=0.0, metavar="Å", help="distance added to the radius, Å (default: 0)"
    )
    add_index(parser)
    parser.add_argument(
        "--backend", metavar="NAME", default="auto", help="search algorithm (default: auto, the fastest for the device)"
    )
    add_device(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    import torch

    from torchmdx.checkpoints.save_load import load
    from torchmdx.datasets.distributions import histogram
    from torchmdx.neighbors.search import EdgeSearch
    from torchmdx.runtime.devices import choose_device
    from torchmdx.structures.files import read_structures
    from torchmdx.structures.system import Batch, System

    if options.cutoff is not None and options.model is not None:
        raise ValueError(
            f"--cutoff and --model exclude each other, got --cutoff {options.cutoff:g} and --model {options.model}"
        )
    if options.cutoff is not None and options.coulomb_cutoff is not None:
        raise ValueError(
            f"--cutoff and --coulomb-cutoff exclude each other, got {options.cutoff:g} and {options.coulomb_cutoff:g}"
        )
    cutoff = options.cutoff
    if cutoff is None:
        cutoff = load(options.model, **coulomb_treatment(options)).cutoff
    for atoms in read_structures(options.file, options.index):
        system = System.from_ase(atoms, dtype=torch.float32, device=choose_device(options.device))
        search = EdgeSearch(cutoff, skin=options.skin, backend=options.backend)
        edges = search.allocate(Batch.of(system))
        counts = (edges.row_ptr[1:] - edges.row_ptr[:-1]).cpu()
        radius = f"{cutoff + options.skin:g} Å"
        found = f"{counted(system.num_atoms, 'atom')}, {counted(int(edges.num_edges), 'edge')}"
        print(f"{atoms.get_chemical_formula()}: {found} within {radius}")
        print(f"search: {search.backend} on {system.positions.device}")
        if not system.num_atoms:
            continue
        busiest = int(counts.argmax())
        print(
            f"neighbours per atom: {counts.double().mean():.1f} on average, minimum {int(counts.min())}, "
            f"maximum {int(counts.max())} (atom {busiest}, {atoms.symbols[busiest]})"
        )
        print("\n".join(histogram(Counter(counts.tolist()))))
        tensors = (edges.row_ptr, edges.source, edges.target, edges.shifts)
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        spare = edges.capacity / max(int(edges.num_edges), 1) - 1
        print(f"capacity: {edges.capacity} edges ({spare:.0%} spare), {size / 2**20:.2f} MiB")
    return 0
