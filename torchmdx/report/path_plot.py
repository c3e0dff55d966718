"""Picture and page of a reaction path."""

from __future__ import annotations

from pathlib import Path

from torchmdx.dynamics.paths.reaction import ReactionPath
from torchmdx.report.style import PALETTE, picture, tidy
from torchmdx.report.view.arrange import movie_of
from torchmdx.report.view.movie import Line, Movie, Panel
from torchmdx.report.view.read import of_structures


def plot_path(path: ReactionPath, file: Path, title: str) -> None:
    """Writes the energies along a path as PNG or SVG. Raises ImportError without matplotlib."""
    lengths, energies = path.lengths, path.energies - path.energies[0]
    where, curve = path.curve()
    with picture(file, 6.4, 3.8) as figure:
        panel = figure.subplots()
        panel.plot(where, curve - path.energies[0], color=PALETTE[0], linewidth=1.4)
        panel.plot(lengths, energies, "o", color=PALETTE[0], markersize=5)
        if path.saddle is not None:
            panel.axhline(path.forward, color=PALETTE[3], linewidth=1.0, linestyle="--", label="refined saddle")
            panel.legend(frameon=False, fontsize=8)
        text = f"forward {path.forward:.3f} eV, backward {path.backward:.3f} eV"
        tidy(panel, f"{title}\n{text}", "path / Å", "energy / eV, relative to the first minimum")


def path_movie(path: ReactionPath, title: str) -> Movie:
    """The images as frames, next to the energies along the path."""
    frames = of_structures(path.images, title=title, axis="image")
    where, curve = path.curve()
    start, lengths = float(path.energies[0]), path.lengths
    frames.x, frames.axis = lengths, "path / Å"
    relative = (path.energies - start).tolist()
    frames.captions = [f"{text}, {value:.4f} eV" for text, value in zip(frames.captions, relative, strict=True)]
    energies = [Line("energy", where, curve - start)]
    frames.panels = [Panel("energy / eV, relative to the first minimum", energies)]
    return movie_of(frames)
