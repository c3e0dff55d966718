"""One self-contained HTML page: plotly's JavaScript, the data, and the scripts of this folder. Nothing is fetched."""

from __future__ import annotations

import base64
import html
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import torchmdx
from torchmdx.report.view.bonds import TOLERANCE, radii
from torchmdx.report.view.movie import Kind, Line, Movie, Panel, Torsions
from torchmdx.runtime.files import write_whole
from torchmdx.runtime.optional_package import require_package

FOLDER = Path(__file__).parent
SCRIPTS = ("structure.js", "viewer.js", "plots.js")  # of all pages
GENERATOR = "torchmdx view"  # by which a page is recognized
LARGEST = 32767  # of 16 bits


def require_plotly() -> None:
    """Raises ImportError without plotly."""
    require_package("plotly", "interactive pages need", "view")


def write_movie(path: Path, movie: Movie) -> None:
    """Writes the page of a movie. Raises ImportError without plotly, OSError if the file cannot be written."""
    write_page(path, movie.title, movie_data(movie), "movie.js")


def page_text(movie: Movie) -> str:
    """The page of a movie. Raises ImportError without plotly."""
    return _text(movie.title, movie_data(movie), "movie.js")


def write_page(path: Path, title: str, data: Mapping[str, Any], script: str) -> None:
    """Writes a page whose scripts, those that all pages share and one more of this folder, find `data` as JSON."""
    write_whole(path, _text(title, data, script).encode())


def _text(title: str, data: Mapping[str, Any], script: str) -> str:
    require_plotly()
    from plotly.offline import get_plotlyjs

    parts = {
        "TITLE": html.escape(title),
        "GENERATOR": html.escape(f"{GENERATOR} {torchmdx.__version__}"),
        "STYLE": (FOLDER / "page.css").read_text(encoding="utf-8"),
        # No text of a file ends the element that holds the data.
        "DATA": json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
        "PLOTLY": get_plotlyjs().replace("</script", "<\\/script"),
        "SCRIPT": "\n".join((FOLDER / name).read_text(encoding="utf-8") for name in (*SCRIPTS, script)),
    }
    pieces = (FOLDER / "page.html").read_text(encoding="utf-8").split("@@")
    return "".join(parts[piece] if place % 2 else piece for place, piece in enumerate(pieces))


def is_page(path: Path) -> bool:
    """Whether a file is a page that torchmdx wrote."""
    with path.open("rb") as file:
        return f'content="{GENERATOR} '.encode() in file.read(2000)


def movie_data(movie: Movie) -> dict[str, Any]:
    """A movie as JSON: positions in 16 bits, other arrays as base64 or rounded."""
    lengths = [np.abs(positions).max() for positions in movie.positions]
    lengths += [np.abs(cell).sum(0).max() / 2 for cell in movie.cells if cell is not None]
    reach = max(float(max(lengths)), 1e-3)
    scale = reach / LARGEST
    packed = np.concatenate([np.round(positions / scale).ravel() for positions in movie.positions]).astype("<i2")
    return {
        "title": movie.title,
        "summary": summary(movie),
        "notes": movie.notes,
        "scale": scale,
        "positions": encoded(packed),
        "kinds": [structure_data(kind) for kind in movie.kinds],
        "kindOf": movie.kind_of if len(movie.kinds) > 1 else None,
        "elements": elements_data(np.unique(np.concatenate([kind.numbers for kind in movie.kinds]))),
        "tolerance": TOLERANCE,
        "cells": cells_data(movie.cells),
        "repeats": movie.repeats,
        "captions": movie.captions,
        "x": rounded(movie.x),
        "axis": movie.axis,
        "panels": [panel_data(panel) for panel in movie.panels],
        "observables": [
            {"title": one.title, "axis": one.axis, "lines": [_line_data(line) for line in one.lines]}
            for one in movie.observables
        ],
        "torsions": None if movie.torsions is None else torsions_data(movie.torsions),
    }


def summary(movie: Movie) -> str:
    """A line below the title; of a cell that is drawn several times, what one of them holds."""
    from ase.formula import Formula
    from ase.symbols import Symbols

    count = movie.num_atoms // math.prod(movie.repeats)
    atoms = f"{count:,} atom{'s' * (count != 1)}"
    if len(movie.kinds) == 1:
        formula = Formula(Symbols(movie.kinds[0].numbers[:count]).get_chemical_formula())
        what = f"{formula}, {atoms}"
    else:
        what = f"{len(movie.kinds)} kinds of structures of up to {atoms}"
    frames = f"{movie.num_frames:,} frame{'s' * (movie.num_frames != 1)}"
    return f"{what}, {frames}; torchmdx {torchmdx.__version__}"


def structure_data(kind: Kind) -> dict[str, Any]:
    """Elements and possible bonds of a structure; the last of the pairs are bonds across faces, with their shifts."""
    pairs = np.concatenate([kind.pairs, kind.crossings[:, :2]])
    return {
        "numbers": encoded(kind.numbers.astype("<u1")),
        "pairs": encoded(pairs.astype("<u2")),
        "shifts": encoded(kind.crossings[:, 2:].astype("<i1")),
        "labels": kind.labels,
    }


def elements_data(numbers: NDArray[np.int64]) -> dict[str, dict[str, Any]]:
    """Symbol, colour (Jmol's, which follow CPK) and covalent radius in Å of each element; negative: has no bonds."""
    from ase.data import chemical_symbols
    from ase.data.colors import jmol_colors

    sizes = radii(numbers)
    found = {}
    for number, radius in zip(numbers.tolist(), sizes.tolist(), strict=True):
        red, green, blue = (round(255 * part) for part in jmol_colors[number])
        found[str(number)] = {
            "symbol": chemical_symbols[number], "colour": f"#{red:02x}{green:02x}{blue:02x}",
            "radius": round(radius, 3), "size": round(drawn_radius(number), 3),
        }  # fmt: skip
    return found


def drawn_radius(number: int) -> float:
    """Radius of a ball in Å, between those of bonds and of atoms."""
    from ase.data import covalent_radii

    return 0.2 + 0.25 * float(covalent_radii[number])


def cells_data(cells: Sequence[NDArray[np.float64] | None]) -> str | None:
    """Cells of all frames as float32, zero without one; one cell if they are all the same; None if there is none."""
    known = [np.zeros((3, 3)) if cell is None else cell for cell in cells]
    if not any(cell.any() for cell in known):
        return None
    if all(np.array_equal(known[0], cell) for cell in known):
        known = known[:1]
    return encoded(np.stack(known).astype("<f4"))


def panel_data(panel: Panel) -> dict[str, Any]:
    """Curves of a panel."""
    return {
        "title": panel.title,
        "level": panel.level,
        "logarithmic": panel.logarithmic,
        "lines": [_line_data(line) for line in panel.lines],
    }


def _line_data(line: Line) -> dict[str, Any]:
    return {"name": line.name, "x": rounded(line.x), "y": rounded(line.y)}


def torsions_data(torsions: Torsions) -> dict[str, Any]:
    """Tenths of a degree."""
    angles = {name: np.round(10 * getattr(torsions, name)).astype("<i2") for name in ("phi", "psi")}
    return {"names": torsions.names, **{name: encoded(values) for name, values in angles.items()}}


def rounded(values: NDArray[np.float64]) -> list[float | None]:
    """Seven digits; None for NaN, which JSON does not have."""
    return [float(f"{value:.7g}") if np.isfinite(value) else None for value in values.tolist()]


def encoded(values: NDArray[Any]) -> str:
    """The bytes of an array, in base64."""
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()
