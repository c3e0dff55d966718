"""The page that a finished run leaves beside its files."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from torchmdx.view.arrange import movie_of
from torchmdx.view.dcd import open_dcd
from torchmdx.view.page import require_plotly, write_movie
from torchmdx.view.read import of_dcd


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
    """Writes the page of a DCD trajectory; without plotly, or if it fails, prints one line and returns False.

    The files of the run are complete by then, so that no failure of its page fails the run. numbers [N]: elements;
    labels: of the atoms; log: of the run; temperature: its thermostat's, K.
    """
    try:
        require_plotly()
        dcd = open_dcd(trajectory)
        frames = of_dcd(dcd, numbers, title=title, labels=labels, log=log, temperature=temperature)
        write_movie(path, movie_of(frames))
    except (ImportError, OSError, ValueError) as error:
        print(f"no page: {error}", file=sys.stderr)
        return False
    return True
