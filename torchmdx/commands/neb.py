"""`torchmdx neb`: the path between two minima and its barrier, by a nudged elastic band."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchmdx.commands.options import add_model_options, model_of
from torchmdx.runtime.files import require_new
from torchmdx.runtime.interrupt import Interrupts

if TYPE_CHECKING:
    from ase import Atoms

    from torchmdx.dynamics.paths.reaction import ReactionPath

ENDINGS = (".traj", ".xyz", ".extxyz")
PICTURES = (".png", ".svg")
EPILOG = """\
The order of the atoms must be the same at both ends. The energies, a picture of them and an interactive page are
written next to the path.

    torchmdx neb reactant.xyz product.xyz -o path.traj
    torchmdx neb vacancy_a.cif vacancy_b.cif -o hop.traj --model model.safetensors --images 5 --refine
"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "neb",
        help="find the path between two minima, and its barrier",
        description="Relaxes both ends and finds the path of lowest energy between them by a nudged elastic band with "
        "a climbing image. Constraints in the first file are kept.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("first", metavar="A", help="structure file of one end, in any format that ASE reads")
    parser.add_argument("last", metavar="B", help="structure file of the other end")
    parser.add_argument(
        "-o", "--output", required=True, metavar="FILE", help="trajectory of the path, .traj, .xyz or .extxyz"
    )
    add_model_options(parser, dtype="float32")
    parser.add_argument("--images", type=int, default=7, metavar="N", help="images between the ends (default: 7)")
    parser.add_argument(
        "--fmax", type=float, default=0.05, metavar="F", help="stop when the band's forces are below F eV/Å "
        "(default: 0.05)",
    )  # fmt: skip
    parser.add_argument("--steps", type=int, default=500, metavar="N", help="maximum number of steps (default: 500)")
    parser.add_argument("--spring", type=float, default=0.1, metavar="K", help="spring constant, eV/Å² (default: 0.1)")
    parser.add_argument(
        "--start", choices=("idpp", "linear"), default="idpp", help="initial path: IDPP or linear interpolation"
    )
    parser.add_argument("--no-climb", action="store_true", help="do not move the highest image to the saddle")
    parser.add_argument("--no-relax-ends", action="store_true", help="treat both ends as minima")
    parser.add_argument("--refine", action="store_true", help="refine the transition state by the dimer method")
    parser.add_argument("--picture", metavar="FILE", help="picture, .png or .svg (default: OUTPUT with .png)")
    parser.add_argument("--no-page", action="store_true", help="do not write the page, OUTPUT with .html")
    parser.add_argument("--overwrite", action="store_true", help="replace existing output files")
    parser.set_defaults(run=run, locked=("output",))


def run(options: argparse.Namespace) -> int:
    outputs = _outputs(options)
    from torchmdx.dynamics.paths.run import neb
    from torchmdx.structures.files import read_record

    first, last = (read_record(file, "-1", options.charge) for file in (options.first, options.last))
    print(f"{options.first}: {first.atoms.get_chemical_formula()}, {len(first.atoms)} atoms, {first.charge_text}")
    with Interrupts() as interrupts:
        path = neb(
            first.atoms,
            last.atoms,
            model_of(options),
            images=options.images,
            fmax=options.fmax,
            steps=options.steps,
            spring=options.spring,
            climb=not options.no_climb,
            start=options.start,
            relax_ends=not options.no_relax_ends,
            refine=options.refine,
            charge=options.charge,
            dtype=options.dtype,
            device=options.device,
            coulomb_cutoff=options.coulomb_cutoff,
            coulomb=options.coulomb,
            coulomb_accuracy=options.coulomb_accuracy,
            stop=lambda: interrupts.received is not None,
            report=lambda text: print(text, flush=True),
        )
    _report(path)
    _write(path, outputs, f"{Path(options.first).name} to {Path(options.last).name}")
    if interrupts.received is not None:
        return interrupts.status
    if not path.converged:
        print(f"{path.reason}; raise --steps, or start with more --images", file=sys.stderr)
    return 0 if path.converged else 1


def _outputs(options: argparse.Namespace) -> dict[str, Path | None]:
    """The files to write, by kind. Raises for endings and folders, and for files that exist."""
    path = Path(options.output)
    if path.suffix not in ENDINGS:
        raise ValueError(f"--output must end in {', '.join(ENDINGS)}, got {options.output!r}")
    drawn = Path(options.picture) if options.picture else path.with_suffix(".png")
    if drawn.suffix not in PICTURES:
        raise ValueError(f"--picture must end in {' or '.join(PICTURES)}, got {options.picture!r}")
    for option, file in (("--output", path), ("--picture", drawn)):
        if not file.parent.is_dir():
            raise FileNotFoundError(f"{option} must be in an existing directory, got {str(file)!r}")
    given = {Path(options.first).resolve(), Path(options.last).resolve()}
    if path.resolve() in given:
        raise ValueError(f"--output must not be the file of an end, got {options.output!r}")
    outputs = {"path": path, "picture": drawn, "page": None if options.no_page else path.with_suffix(".html")}
    if not options.overwrite:
        require_new(*(str(file) for file in outputs.values() if file is not None))
    return outputs


def _report(path: ReactionPath) -> None:
    print("image  path/Å  energy/eV  relative/eV")
    for k, (length, energy) in enumerate(zip(path.lengths.tolist(), path.energies.tolist(), strict=True)):
        print(f"{k:5d}  {length:6.3f}  {energy:.5f}  {energy - path.energies[0]:9.4f}" + "  *" * (k == path.highest))
    print(f"barrier forward {path.forward:.4f} eV, backward {path.backward:.4f} eV")
    if path.intermediates:
        print(f"intermediate minima near images {', '.join(map(str, path.intermediates))}: relax them as further ends")
    if path.saddle is not None:
        print(f"refined transition state: curvature {path.curvature:.3f} eV/Å² along its unstable mode")
    print(f"largest force of the band {path.fmax:.4g} eV/Å after {path.num_steps} steps")


def _write(path: ReactionPath, outputs: dict[str, Path | None], title: str) -> None:
    """Writes the path with its saddle at the end, and without their packages neither picture nor page."""
    import ase.io

    frames: list[Atoms] = [*path.images]
    if path.saddle is not None:
        saddle = path.saddle.copy()
        saddle.calc, saddle.info["transition_state"] = path.saddle.calc, True
        frames.append(saddle)
    ase.io.write(str(outputs["path"]), frames)
    written = [str(outputs["path"])]
    from torchmdx.report.path_plot import path_movie, plot_path
    from torchmdx.report.view.page import write_movie

    for file, draw in (
        (outputs["picture"], lambda file: plot_path(path, file, title)),
        (outputs["page"], lambda file: write_movie(file, path_movie(path, title))),
    ):
        try:
            if file is not None:
                draw(file)
                written.append(str(file))
        except ImportError as error:
            print(f"no {file}: {error}", file=sys.stderr)
    print(f"wrote {', '.join(written)}")
