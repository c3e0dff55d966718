"""`torchmdx.view`: structures in a notebook, or as a page, in three dimensions."""

from __future__ import annotations

import html
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchmdx.report.view.arrange import movie_of
from torchmdx.report.view.movie import Movie
from torchmdx.report.view.page import page_text, require_plotly, summary, write_movie
from torchmdx.report.view.read import of_structures

if TYPE_CHECKING:
    from ase import Atoms

HEIGHT = 620  # pixels


class View:
    """A page of structures, which a notebook displays; made by `view`."""

    def __init__(self, movie: Any, height: int) -> None:
        self._movie: Movie = movie
        self._height = height

    def save(self, path: str | Path) -> None:
        """Writes the page, which needs no network and no other file."""
        write_movie(Path(path), self._movie)

    def _repr_html_(self) -> str:
        page = html.escape(page_text(self._movie), quote=True)
        return f'<iframe srcdoc="{page}" width="100%" height="{self._height}" style="border: 0"></iframe>'

    def __repr__(self) -> str:
        return f"View({self._movie.title}: {summary(self._movie)})"


def view(structures: Atoms | Iterable[Atoms], *, title: str | None = None, height: int = HEIGHT) -> View:
    """Shows a structure, or several as frames with a slider, in a notebook; nothing is fetched.

    Example::

        torchmdx.view(atoms)
        torchmdx.view(many, title="Molecules").save("molecules.html")

    The energies, forces and temperatures that frames carry are plotted next to them.

    Args:
        title: None for the formula.
        height: Of the view, pixels.

    Raises:
        ImportError: Without plotly.
        TypeError: For anything but structures of ASE, such as the name of a file.
        ValueError: Without a structure that has atoms.
    """
    from ase import Atoms

    require_plotly()
    frames = [structures] if isinstance(structures, Atoms) else list(structures)
    if not frames:
        raise ValueError("a view needs at least one structure, got none")
    other = next((frame for frame in frames if not isinstance(frame, Atoms)), None)
    if other is not None:
        raise TypeError(f"a view needs structures of ASE, got {type(other).__name__}; `torchmdx view` shows files")
    name = frames[0].get_chemical_formula() if title is None else title
    return View(movie_of(of_structures(frames, title=name)), height)
