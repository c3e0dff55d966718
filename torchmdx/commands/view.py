"""`torchmdx view`: an interactive HTML page of a trajectory or structure."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

EPILOG = """\
The page needs no network and no other file: open it in a browser, send it, archive it.

    torchmdx view run.dcd
    torchmdx view relaxed.cif -o crystal.html
    torchmdx view protein.dcd --structure protein.pdb --index ::10
"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "view",
        help="make an interactive HTML page of a trajectory or structure",
        description="Writes one HTML file with the atoms moving in 3D, energies and other curves, and a "
        "Ramachandran map for peptides.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", metavar="FILE", help="trajectory or structures: DCD, or any format that ASE reads")
    parser.add_argument("-o", "--output", metavar="PAGE", help="file to write (default: FILE with the ending .html)")
    parser.add_argument(
        "--index", default=":", metavar="I", help="frames to show, as ASE writes them: -1, 0:100, ::10 (default: all)"
    )
    parser.add_argument(
        "--structure",
        metavar="FILE",
        help="structure with the elements of a DCD (default: in the same folder, such as run.final.pdb for run.dcd)",
    )
    parser.add_argument("--log", metavar="FILE", help="log of the run of a DCD (default: in the same folder, if any)")
    parser.add_argument(
        "--frame-time", type=float, metavar="FS", help="time between the frames of a file that has no times, fs; "
        "averages over the simulation are then shown",
    )  # fmt: skip
    parser.add_argument("--title", metavar="TEXT", help="title of the page (default: the name of the file)")
    parser.add_argument("--overwrite", action="store_true", help="replace a file that is not a page of torchmdx")
    parser.set_defaults(run=run, locked=("output",))


def run(options: argparse.Namespace) -> int:
    from torchmdx.report.view.arrange import movie_of
    from torchmdx.report.view.page import is_page, require_plotly, write_movie
    from torchmdx.report.view.read import read

    page = Path(options.output or Path(options.file).with_suffix(".html"))
    if not page.parent.is_dir():
        raise FileNotFoundError(f"--output must be in an existing directory, got {str(page)!r}")
    if page.is_dir():
        raise IsADirectoryError(f"--output must be a file, got the directory {str(page)!r}")
    if page.exists() and page.samefile(options.file):
        raise ValueError(f"the page must be another file than the structures, got {str(page)!r} for both: use -o")
    if page.exists() and not options.overwrite and not is_page(page):
        raise FileExistsError(f"{str(page)!r} exists and is not a page of torchmdx: use --overwrite, or -o")
    require_plotly()
    frames = read(
        options.file, index=options.index, structure=options.structure, log=options.log, frame_time=options.frame_time
    )
    if options.title is not None:
        frames.title = options.title
    movie = movie_of(frames)
    write_movie(page, movie)
    for note in movie.notes:
        print(note)
    frames_of = f"{movie.num_frames:,} frame{'s' * (movie.num_frames != 1)} of {movie.num_atoms:,} atoms"
    print(f"wrote {page}: {frames_of}")
    return 0
