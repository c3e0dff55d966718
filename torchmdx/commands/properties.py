"""`torchmdx properties`: equation of state, elastic constants, phonons and vacancies of a crystal."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchmdx.commands.options import add_index, add_model_options, make_calculator, structure_of
from torchmdx.runtime.files import require_new, write_whole

if TYPE_CHECKING:
    from ase import Atoms

KINDS = ("eos", "elastic", "phonons", "vacancy")
PICTURES = ("eos", "phonons")
EPILOG = """\
Atoms and cell are relaxed first. The results are printed, and written with the prefix OUTPUT: .json with all numbers,
.xyz with the relaxed crystal, .eos.png and .phonons.png.

    torchmdx properties crystal.cif -o crystal --model model.safetensors --eos --elastic --phonons
    torchmdx properties copper.cif -o copper --model model.safetensors --vacancy --supercell 3 3 3
"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "properties",
        help="compute properties of a crystal: equation of state, elastic constants, phonons, vacancies",
        description="Computes properties of a crystal, in float64 by default. Phonons need phonopy: "
        "pip install 'torchmdx[properties]'.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", metavar="FILE", help="structure file in any format that ASE reads")
    parser.add_argument("-o", "--output", required=True, metavar="PREFIX", help="prefix of the files to write")
    add_index(parser)
    add_model_options(parser, dtype="float64")
    parser.add_argument("--eos", action="store_true", help="energies at several volumes, Birch-Murnaghan fit")
    parser.add_argument("--elastic", action="store_true", help="elastic constants and moduli, from strained cells")
    parser.add_argument("--phonons", action="store_true", help="bands, density of states, thermal properties")
    parser.add_argument("--vacancy", action="store_true", help="formation energies of vacancies")
    parser.add_argument(
        "--supercell", type=int, nargs=3, metavar=("A", "B", "C"), help="repetitions of the cell for phonons and "
        "vacancies (default: at least 10 Å between opposite faces)",
    )  # fmt: skip
    parser.add_argument(
        "--chemical-potential", action="append", default=[], metavar="X=EV", help="with --vacancy: energy of an atom "
        "of element X, eV, needed for each element of a compound",
    )  # fmt: skip
    parser.add_argument("--no-relax", action="store_true", help="treat the structure as relaxed")
    parser.add_argument(
        "--fmax",
        type=float,
        default=0.001,
        metavar="F",
        help="largest force once relaxed, eV/Å (default: 0.001)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace existing output files")
    parser.set_defaults(run=run, locked=("output",))


def run(options: argparse.Namespace) -> int:
    kinds = [kind for kind in KINDS if getattr(options, kind)]
    potentials = _require(options, kinds)
    files = _outputs(options, kinds)
    import numpy as np

    from torchmdx.materials.crystal import relaxed, require_crystal
    from torchmdx.models.digest import origin_of
    from torchmdx.structures.units import GPA

    record = structure_of(options)
    atoms = record.atoms
    atoms.set_constraint()
    atoms.calc = make_calculator(options, len(atoms))
    require_crystal(atoms)
    origin = origin_of(atoms.calc.potential)
    print(f"{options.file}: {atoms.get_chemical_formula()}, {len(atoms)} atoms; potential {origin}", flush=True)
    if not options.no_relax:
        relaxed(atoms, options.fmax, cell=True)
    found: dict[str, Any] = {
        "file": options.file, "formula": atoms.get_chemical_formula(), "potential": origin.info,
        "energy_per_atom": atoms.get_potential_energy() / len(atoms), "cell": atoms.cell.array.tolist(),
    }  # fmt: skip
    lengths = " ".join(f"{value:.4f}" for value in atoms.cell.lengths())
    force = float(np.linalg.norm(atoms.get_forces(), axis=1).max())
    pressure = -float(atoms.get_stress()[:3].mean()) / GPA
    print(
        f"cell {lengths} Å, {found['energy_per_atom']:.6f} eV/atom, largest force {force:.2g} eV/Å, "
        f"pressure {pressure:.2g} GPa",
        flush=True,
    )
    atoms.info |= origin.info
    _write_structure(atoms, files["xyz"])
    title = f"{Path(options.file).name}, {origin}"
    for kind in kinds:
        values, lines, draw = COMPUTE[kind](atoms, options, potentials)
        found[kind] = values
        print("\n".join(lines), flush=True)
        write_whole(files["json"], json.dumps(found, indent=1).encode())  # what is done so far
        if draw is not None:
            _draw(draw, files[kind], title)
    print(f"wrote {', '.join(str(file) for file in files.values() if file.exists())}")
    return 0


def _require(options: argparse.Namespace, kinds: list[str]) -> dict[str, float]:
    """Checks the options; returns chemical potentials by element."""
    if not kinds:
        raise ValueError(f"properties needs some of {', '.join('--' + kind for kind in KINDS)}, got none")
    if not 0 < options.fmax < math.inf:
        raise ValueError(f"--fmax must be > 0 eV/Å, got {options.fmax}")
    if options.supercell is not None and min(options.supercell) < 1:
        raise ValueError(f"--supercell must be three numbers >= 1, got {' '.join(map(str, options.supercell))}")
    potentials = {}
    for text in options.chemical_potential:
        symbol, _, value = text.partition("=")
        try:
            potentials[symbol] = float(value)
        except ValueError:
            raise ValueError(f"--chemical-potential must be such as O=-4.93, got {text!r}") from None
    if potentials and "vacancy" not in kinds:
        raise ValueError("--chemical-potential needs --vacancy")
    return potentials


def _outputs(options: argparse.Namespace, kinds: list[str]) -> dict[str, Path]:
    prefix = options.output
    if not Path(prefix).parent.is_dir():
        raise FileNotFoundError(f"--output must be in an existing directory, got {prefix!r}")
    files = {"json": Path(f"{prefix}.json"), "xyz": Path(f"{prefix}.xyz")}
    files |= {kind: Path(f"{prefix}.{kind}.png") for kind in PICTURES if kind in kinds}
    for file in files.values():
        if file.resolve() == Path(options.file).resolve():
            raise ValueError(f"--output must not be the prefix of the structure file, got {prefix!r}")
    if not options.overwrite:
        require_new(*(str(file) for file in files.values()))
    return files


def _write_structure(atoms: Atoms, file: Path) -> None:
    import ase.io

    ase.io.write(file, atoms, format="extxyz")


def _draw(draw: Callable[[Path, str], None], file: Path, title: str) -> None:
    """Draws a picture; without matplotlib, prints one line."""
    try:
        draw(file, title)
    except ImportError as error:
        print(f"no {file}: {error}", file=sys.stderr)


Computed = tuple[Any, list[str], Callable[[Path, str], None] | None]


def _eos(atoms: Atoms, options: argparse.Namespace, potentials: dict[str, float]) -> Computed:
    from torchmdx.materials.eos import equation_of_state
    from torchmdx.report.crystal_plots import plot_eos

    found = equation_of_state(atoms)
    text = (
        f"equation of state: volume {found.volume:.4f} Å³ ({found.volume / len(atoms):.4f} Å³/atom), "
        f"bulk modulus {found.bulk_modulus:.2f} GPa, derivative {found.derivative:.3f}, "
        f"residual {1000 * found.residual:.3g} meV"
    )
    return asdict(found), [text], lambda file, title: plot_eos(found, file, title)


def _elastic(atoms: Atoms, options: argparse.Namespace, potentials: dict[str, float]) -> Computed:
    from torchmdx.materials.elasticity import elastic

    found = elastic(atoms)
    lines = ["elastic constants / GPa, in the order xx yy zz yz xz xy:"]
    lines += [" ".join(f"{value:9.2f}" for value in row) for row in found.stiffness]
    lines += [
        f"bulk modulus {found.bulk:.2f} (Voigt {found.bulk_voigt:.2f}, Reuss {found.bulk_reuss:.2f}), "
        f"shear modulus {found.shear:.2f} (Voigt {found.shear_voigt:.2f}, Reuss {found.shear_reuss:.2f}) GPa",
        f"Young's modulus {found.young:.2f} GPa, Poisson's ratio {found.poisson:.3f}, "
        + ("stable" if found.stable else "NOT STABLE: a strain lowers the energy")
        + f"; the constants differ from their transpose by up to {found.asymmetry:.2g} GPa",
    ]
    return asdict(found), lines, None


def _phonons(atoms: Atoms, options: argparse.Namespace, potentials: dict[str, float]) -> Computed:
    from torchmdx.materials.phonon_bands import phonons
    from torchmdx.report.crystal_plots import plot_phonons

    found = phonons(atoms, supercell=_supercell(options))
    at = found.temperatures.index(300.0)
    lines = [
        f"phonons: supercell {' × '.join(map(str, found.supercell))}, {found.num_displacements} displacements; "
        f"frequencies {found.lowest:.3f} to {found.highest:.3f} THz, "
        + ("stable" if found.stable else "NOT STABLE: imaginary modes"),
        f"per primitive cell of {found.num_atoms} atoms: zero-point energy {found.zero_point_energy:.5f} eV; at 300 K "
        f"entropy {found.entropy[at]:.3f}, heat capacity {found.heat_capacity[at]:.3f} J/mol/K"
        + ("" if found.stable else ", without the imaginary modes"),
    ]
    return asdict(found), lines, lambda file, title: plot_phonons(found, file, title)


def _vacancy(atoms: Atoms, options: argparse.Namespace, potentials: dict[str, float]) -> Computed:
    from torchmdx.materials.vacancy import vacancies

    found = vacancies(atoms, supercell=_supercell(options), chemical_potentials=potentials)
    lines = [
        f"vacancy of {one.symbol} (atom {one.site}): formation energy {one.energy:.4f} eV, unrelaxed "
        f"{one.unrelaxed:.4f} eV, in {one.num_atoms} atoms"
        for one in found
    ]
    return [asdict(one) for one in found], lines, None


def _supercell(options: argparse.Namespace) -> tuple[int, int, int] | None:
    if options.supercell is None:
        return None
    first, second, third = options.supercell
    return first, second, third


COMPUTE: dict[str, Callable[[Any, argparse.Namespace, dict[str, float]], Computed]] = {
    "eos": _eos, "elastic": _elastic, "phonons": _phonons, "vacancy": _vacancy,
}  # fmt: skip
