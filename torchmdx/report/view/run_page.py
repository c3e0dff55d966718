"""The page that a finished run leaves next to its files."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from torchmdx.report.view.arrange import movie_of
from torchmdx.report.view.hdf5 import open_trajectory
from torchmdx.report.view.movie import MovieFrames
from torchmdx.report.view.page import require_plotly, write_movie
from torchmdx.report.view.read import of_dcd
from torchmdx.report.view.recording import ThinnedSteps


def write_run_page(
    path: Path,
    trajectory: Path,
    numbers: NDArray[np.int64],
    *,
    title: str,
    labels: list[str] | None = None,
    log: Path | None = None,
    temperature: float | None = None,
) -> bool:
    """Writes the page of a DCD or HDF5 trajectory; without plotly, or if it fails, prints one line and returns False.

    The files of the run are complete by then, so that no failure of its page fails the run. numbers [N]: elements;
    labels: of the atoms; log: of the run; temperature: its thermostat's, K.
    """

    def frames() -> MovieFrames:
        return of_dcd(
            open_trajectory(trajectory), numbers, title=title, labels=labels, log=log, temperature=temperature
        )

    return _written(path, frames)


def write_relaxation_page(path: Path, recording: ThinnedSteps, *, title: str) -> bool:
    """`write_run_page` for the steps of a relaxation."""
    return _written(path, lambda: recording.frames(title))


def _written(path: Path, frames: Callable[[], MovieFrames]) -> bool:
    try:
        require_plotly()
        write_movie(path, movie_of(frames()))
    except (ImportError, OSError, ValueError) as error:
        print(f"no page: {error}", file=sys.stderr)
        return False
    return True
