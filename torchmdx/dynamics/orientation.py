"""Cells as trajectory formats hold them: three lengths and three angles, so that the orientation is a convention.

Readers put a along x and b in the xy plane, with positive diagonal. Positions have to be turned the same way, or their
minimum images are wrong.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch
from numpy.typing import NDArray

from torchmdx.structures.cell import complete

Floats = NDArray[np.float64]

VACUUM = 10.0  # Å: the least distance between the images of a structure along a direction without images
ROUNDED = 1e-8  # of the largest component: less than what files resolve
DEPENDENT = 1e-6  # a vector with a smaller part that is perpendicular to the others, of its length, has no direction


def standard(cell: Floats) -> tuple[Floats, Floats]:
    """(lower, rotation), both [3,3]: vectors v @ rotation.T belong to the lattice with the vectors lower.

    lower @ rotation is the cell, or its negative if it is left-handed, which is a basis of the same lattice with the
    same lengths and angles. Never a mirror image. A cell that is lower within rounding is left as it is.
    """
    if np.abs(np.triu(cell, 1)).max() <= ROUNDED * np.abs(cell).max() and (np.diagonal(cell) > 0).all():
        return cell, np.eye(3)
    basis = cell if np.linalg.det(cell) > 0 else -cell
    lower = np.asarray(np.linalg.cholesky(basis @ basis.T), dtype=np.float64)
    return lower, np.asarray(np.linalg.solve(lower, basis), dtype=np.float64)


def is_standard(cell: Floats) -> bool:
    """Whether `standard` leaves positions as they are."""
    return bool(np.array_equal(standard(cell)[1], np.eye(3)))


def closed(cell: Floats, pbc: NDArray[np.bool_], positions: Floats) -> Floats:
    """A cell [3,3] Å for formats in which all directions are periodic; rows of periodic directions are kept.

    The others are perpendicular to them and to each other, as far as possible along the given ones. They are as long as
    those parts of the given ones, and long enough that no two atoms at positions [N,3] are closer, or seem bonded,
    through them.
    """
    if pbc.all():
        return cell
    rows = np.where(pbc[:, None], cell, 0.0)
    open_rows = np.flatnonzero(~pbc)
    for k in open_rows:
        others = rows[np.linalg.norm(rows, axis=1) > 0]
        inside = np.linalg.qr(others.T)[0] if len(others) else np.zeros((3, 0))
        rest = cell[k] - inside @ (inside.T @ cell[k])
        if np.linalg.norm(rest) > DEPENDENT * np.linalg.norm(cell[k]):
            rows[k] = rest
    known = np.linalg.norm(rows, axis=1) > 0
    rows = complete(torch.as_tensor(rows)[None], torch.as_tensor(known)[None])[0].numpy().copy()
    for k in open_rows:
        length = np.linalg.norm(rows[k])
        extent = np.ptp(positions @ (rows[k] / length)) if len(positions) else 0.0
        rows[k] *= max(length * bool(known[k]), extent + max(extent, VACUUM)) / length
    return rows


def tell_of_cells(cells: Floats, pbc: NDArray[np.bool_], name: str, unrotated: bool = False) -> None:
    """Warns, once for all structures, where frames of trajectories differ from the states of a run.

    cells [S,3,3] Å, pbc [S,3]; name: of the format. unrotated: an earlier version, which did not rotate,
    wrote the first frames.
    """
    places = [f" of structure {number}" * (len(cells) > 1) for number in range(len(cells))]
    partly = [number for number, own in enumerate(pbc) if own.any() and not own.all()]
    for number in partly[:1]:
        missing = " and ".join("abc"[k] for k in np.flatnonzero(~pbc[number]))
        warnings.warn(
            f"cells of trajectories have three vectors: frames{places[number]} have a perpendicular one for {missing}, "
            "where the structure is not periodic",
            stacklevel=3,
        )
    nowhere = np.zeros((0, 3))
    rotated = [
        number for number, own in enumerate(pbc) if own.any() and not is_standard(closed(cells[number], own, nowhere))
    ]
    for number in rotated[:1]:
        more = ", and have the vectors of the run as cell_vectors" * (name == "hdf5" and not unrotated)
        more += ", from here on; those that an earlier version wrote are not" * unrotated
        warnings.warn(
            f"trajectories hold lengths and angles of cells: frames{places[number]} are rotated to a along x and b in "
            f"the xy plane{more}",
            stacklevel=3,
        )
