"""`torchmdx data`: converts files to a store, prints statistics of a store, and splits it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from torchmdx.commands.reading_options import add_reading_options, reading_of
from torchmdx.runtime.wording import counted


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "data",
        help="training data: convert to a store, print statistics, split",
        description="Converts labelled structures to a store, prints its statistics, and splits it for training.",
    )
    inner = parser.add_subparsers(title="actions", dest="action", metavar="ACTION", required=True)
    _add_convert(inner)
    _add_stats(inner)
    _add_split(inner)


def _add_convert(inner: Any) -> None:
    parser = inner.add_parser(
        "convert",
        help="convert files to a store",
        description="Converts labelled structures to a store: Å and eV, in files that training maps into memory.",
    )
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="files that ASE reads, NPZ, HDF5, or a directory of .npy files"
    )
    parser.add_argument("-o", "--output", required=True, metavar="STORE", help="the directory to write")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing store")
    parser.add_argument(
        "--processes",
        type=int,
        metavar="K",
        help="processes that read large extended XYZ files (default: one for each CPU, at most 8)",
    )
    add_reading_options(parser)
    parser.set_defaults(run=run_convert, locked=("output",))


def _add_stats(inner: Any) -> None:
    parser = inner.add_parser(
        "stats",
        help="print statistics and outliers of a store",
        description="Prints counts, elements with reference energies, sizes, the distribution of labels, and outliers.",
    )
    parser.add_argument("store", metavar="STORE", help="a store written by `torchmdx data convert`")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument("--outliers", type=int, default=20, metavar="N", help="list at most N outliers (default: 20)")
    parser.set_defaults(run=run_stats)


def _add_split(inner: Any) -> None:
    parser = inner.add_parser(
        "split",
        help="split a store into training, validation and test frames",
        description="Writes a split: the frames for training, validation and test. Sizes are counts (100) or fractions "
        "(0.1) of the frames.",
    )
    parser.add_argument("store", metavar="STORE", help="a store written by `torchmdx data convert`")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="the .json file to write")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing file")
    parser.add_argument("--train", type=_size, metavar="N", help="training frames (default: all remaining frames)")
    parser.add_argument("--validation", type=_size, metavar="N", help="validation frames (default: 0.1)")
    parser.add_argument("--test", type=_size, metavar="N", help="test frames (default: 0)")
    parser.add_argument("--seed", type=int, metavar="K", help="random seed (default: 0)")
    parser.add_argument(
        "--by",
        choices=("frame", "formula", "file"),
        help="keep frames of one formula or one file together (default: frame)",
    )
    for part in ("train", "validation", "test"):
        parser.add_argument(
            f"--{part}-indices",
            metavar="FILE",
            help=f"frames of part {part}: a text or .npy file of indices, instead of a random split",
        )
    parser.add_argument(
        "--from", dest="source", metavar="FILE", help="a splits.npz file of torchmd-net, instead of a random split"
    )
    parser.set_defaults(run=run_split, locked=("output",))


def _size(word: str) -> int | float:
    return int(word) if word.lstrip("+-").isdigit() else float(word)


def run_convert(options: argparse.Namespace) -> int:
    from torchmdx.datasets.conversion import convert
    from torchmdx.runtime.progress_line import PRINTED_EVERY, ProgressLine

    line = ProgressLine(sys.stdout)

    begun = line.clock()

    def progress(file: str, done: int) -> None:
        if line.due() and (line.on_terminal or line.clock() - begun > PRINTED_EVERY):
            line.draw(f"{Path(file).name}: {counted(done, 'frame')}")

    with line.taking_messages():
        report = convert(
            options.files,
            options.output,
            **reading_of(options),
            overwrite=options.overwrite,
            processes=_processes(options.processes),
            log=line.message,
            progress=progress,
        )
    line.finish()
    print(f"wrote {report.path}: {counted(report.num_frames, 'frame')}, {counted(report.num_atoms, 'atom')}")
    return 0


def _processes(asked: int | None) -> int:
    """Raises ValueError for less than one."""
    import os

    if asked is not None and asked < 1:
        raise ValueError(f"--processes must be at least 1, got {asked}")
    return asked or min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def run_stats(options: argparse.Namespace) -> int:
    import json

    from torchmdx.datasets.distributions import statistics, text
    from torchmdx.datasets.store import Store

    if options.outliers < 0:
        raise ValueError(f"--outliers must be at least 0, got {options.outliers}")
    found = statistics(Store.open(options.store), most_outliers=options.outliers)
    print(json.dumps(found.json(), indent=1) if options.json else text(found))
    return 0


def run_split(options: argparse.Namespace) -> int:
    from torchmdx.datasets.index_files import checked, read_indices, read_torchmdnet
    from torchmdx.datasets.splits import PARTS, remarks_on_copies, split, write_split
    from torchmdx.datasets.store import Store
    from torchmdx.runtime.files import require_new

    if not options.overwrite:
        require_new(options.output)
    store = Store.open(options.store)
    lists = {part: getattr(options, f"{part}_indices") for part in PARTS if getattr(options, f"{part}_indices")}
    drawn = {name: getattr(options, name) for name in (*PARTS, "seed", "by") if getattr(options, name) is not None}
    ways = [name for name, used in (("indices", lists), ("--from", options.source), ("random sizes", drawn)) if used]
    if len(ways) > 1:
        raise ValueError(f"a split must be random, from files of indices, or --from one file, got {' and '.join(ways)}")
    if options.source:
        splits = checked(read_torchmdnet(options.source), store)
    elif lists:
        splits = checked({part: read_indices(path) for part, path in lists.items()}, store)
    else:
        splits = split(store, **drawn)
    write_split(options.output, splits, store)
    for text in remarks_on_copies(store, splits):
        print(text, file=sys.stderr)
    print(f"wrote {options.output}: " + ", ".join(f"{part} {len(splits[part])}" for part in PARTS))
    return 0
