"""`torchmdx uncertainty`: adds the uncertainty of its energies to a potential."""

from __future__ import annotations

import argparse
import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchmdx.commands.options import add_device
from torchmdx.commands.reading_options import add_reading_options, given_reading_options, reading_of

if TYPE_CHECKING:
    import numpy as np

    from torchmdx.datasets.store import Store
    from torchmdx.models.uncertainty import Uncertainty
    from torchmdx.report.sources import Sources

EPILOG = """\
The frames should be those that the potential was trained on, or be like them. Some of them, or those of --calibration,
set the scale: the potential should not have been trained on these. A training adds the uncertainty by itself.

    torchmdx uncertainty run/best.safetensors data.store --split run/split.json
    torchmdx uncertainty model.safetensors frames.xyz
    torchmdx uncertainty released.ckpt frames.xyz --calibration other.xyz --fit-references -o released.safetensors
"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "uncertainty",
        help="add uncertainties of energies to a potential",
        description="Gathers the covariance of a potential's last layer over labelled structures, calibrates the "
        "uncertainty of energies by the errors on others, and stores both in the file of the potential.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="FILE", help="a single potential: a file, or a name of `torchmdx info`")
    parser.add_argument("files", nargs="+", metavar="DATA", help="labelled structures, or a store")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE.safetensors",
        help="file to write (default: FILE itself, if it is a .safetensors file)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing output")
    parser.add_argument("--head", metavar="NAME", help="head of a file with several (default: that of the file)")
    parser.add_argument(
        "--calibration", action="append", metavar="DATA", help="labelled structures for the scale; may be repeated"
    )
    parser.add_argument(
        "--split", metavar="FILE", help="a recorded split (.json): its training and validation frames are used"
    )
    parser.add_argument(
        "--fraction",
        type=float,
        default=0.2,
        help="share of DATA for the scale, drawn at random, without --calibration and --split; at least ten structures "
        "(default: 0.2)",
    )
    parser.add_argument("--seed", type=int, default=0, help="random seed of that draw (default: 0)")
    parser.add_argument(
        "--fit-references",
        action="store_true",
        help="subtract from the errors what energies of elements explain, for labels with other reference energies",
    )
    parser.add_argument(
        "--force-atoms",
        type=int,
        default=200,
        metavar="N",
        help="calibrate the uncertainties of forces by frames with about N atoms in all; 0: not at all (default: 200)",
    )
    add_device(parser)
    parser.add_argument(
        "--dtype", choices=("float32", "float64"), default="float32", help="precision of the network (default: float32)"
    )
    add_reading_options(parser)
    parser.set_defaults(run=run, locked=("output",))


def run(options: argparse.Namespace) -> int:
    import torch

    from torchmdx.checkpoints.save_load import load_one, read, save, with_uncertainty_in
    from torchmdx.datasets.store import Store
    from torchmdx.report.rigidity import add_uncertainty
    from torchmdx.report.sources import Sources
    from torchmdx.runtime.devices import choose_device
    from torchmdx.runtime.files import write_whole
    from torchmdx.runtime.progress_line import ProgressLine

    _require_possible(options)
    useless = given_reading_options(options)
    if useless and all(Store.is_store(file) for file in (*options.files, *(options.calibration or ()))):
        raise ValueError(f"{useless[0]} applies to files, but all inputs are stores")
    output = _output(options)
    potential = load_one(options.model, head=options.head)
    say, line = functools.partial(print, file=sys.stderr), ProgressLine(sys.stderr)

    def advanced(done: int, number: int) -> None:
        if done == number or line.due():
            line.draw(f"{done / number:4.0%}  {done:,}/{number:,}")

    with Sources(reading_of(options), say=say) as sources:
        train, held_out = _sets(options, sources)
        try:
            found = add_uncertainty(
                potential,
                train,
                held_out,
                device=choose_device(options.device),
                dtype=getattr(torch, options.dtype),
                fit_references=options.fit_references,
                force_atoms=options.force_atoms,
                progress=advanced,
                warn=lambda text: say(f"warning: {text}"),
            ).uncertainty
        finally:
            line.finish()
    assert found is not None
    content = with_uncertainty_in(options.model, found, options.head)
    if content is not None:
        write_whole(output, content)
    else:
        reading = read(options.model)
        reading.potential.uncertainty = found
        save(reading.potential, output, report=reading.report)
    _print(found, output)
    return 0


def _require_possible(options: argparse.Namespace) -> None:
    """Raises ValueError for options that exclude each other, and for values that cannot be used."""
    if options.calibration and options.split:
        raise ValueError("--calibration and --split both name frames for the scale: give one of them")
    if options.force_atoms < 0:
        raise ValueError(f"--force-atoms must be >= 0, got {options.force_atoms}")
    if not 0 < options.fraction < 1:
        raise ValueError(f"--fraction must be between 0 and 1, got {options.fraction:g}")


def _output(options: argparse.Namespace) -> Path:
    """The file to write. Raises ValueError if it is not named and cannot be FILE; FileExistsError."""
    from torchmdx.checkpoints.locate import split_head
    from torchmdx.runtime.files import require_new

    if options.output is None:
        file = Path(split_head(options.model)[0] or options.model)
        if not (file.is_file() and file.suffix == ".safetensors"):
            raise ValueError(
                f"the uncertainty is stored in a .safetensors file: name it by -o, got {str(file)!r} without"
            )
        return file
    if Path(options.output).suffix != ".safetensors":
        raise ValueError(f"-o must be a .safetensors file, got {options.output!r}")
    if not options.overwrite:
        require_new(options.output)
    return Path(options.output)


def _sets(options: argparse.Namespace, sources: Sources) -> tuple[tuple[Store, np.ndarray], tuple[Store, np.ndarray]]:
    """The frames of the covariance, and those of the calibration."""
    import numpy as np

    from torchmdx.datasets.splits import split
    from torchmdx.report.rigidity import FEWEST

    if options.split:
        parts = sources.split(options.files, options.split, ("train", "validation"))
        if len(parts) < 2:
            raise ValueError(f"--split needs training and validation frames, got {', '.join(parts)} only")
        return parts["train"], parts["validation"]
    store = sources.together(options.files)
    if options.calibration:
        other = sources.together(options.calibration)
        return (store, np.arange(len(store))), (other, np.arange(len(other)))
    count = max(FEWEST, round(options.fraction * len(store)))
    if count >= len(store):
        raise ValueError(f"at least {FEWEST + 1} labelled structures are needed, got {len(store)}")
    drawn = split(store, validation=count, seed=options.seed)
    return (store, drawn["train"]), (store, drawn["validation"])


def _print(found: Uncertainty, output: Path) -> None:
    from torchmdx.runtime.wording import counted, number

    last = f"last layer of {found.size} inputs"
    print(f"covariance: {last}, {counted(found.num_frames, 'frame')}")
    print(f"calibration: {counted(found.num_calibration, 'frame')}, factor {number(found.factor)} eV")
    for coverage, value in sorted(found.quantiles.items()):
        print(f"  {coverage:5.1%} of energies within {value:.2f} times the uncertainty")
    if found.force_factor is not None:
        print(f"forces: factor {number(found.force_factor)} eV")
    print(output)
