"""Lattice operations on batches of cells. Rows of a cell are lattice vectors; functions take cell [S,3,3], pbc [S,3].

Directions that are not periodic carry no translation: their rows are ignored and replaced by unit vectors orthogonal
to the periodic ones (`complete`), so that slabs, wires and molecules go through the same formulas as crystals.
"""

import torch
from torch import Tensor

# A cell whose volume is below this fraction of the product of its edge lengths has no usable inverse.
FLATTEST = 1e-5


def volume(cell: Tensor) -> Tensor:
    """Volumes [S] of cells [S,3,3], Å³, positive for either handedness. Differentiable."""
    a, b, c = cell.unbind(-2)
    return (torch.linalg.cross(a, b) * c).sum(-1).abs()


def complete(cell: Tensor, pbc: Tensor) -> Tensor:
    """Cells [S,3,3] with each non-periodic row replaced by a unit vector orthogonal to all the other rows."""
    eye = torch.eye(3, dtype=cell.dtype, device=cell.device).expand_as(cell)
    if pbc.device.type == "cpu":  # the two frequent cases, where looking does not wait for a GPU
        if not pbc.any():
            return eye
        if pbc.all() and not (cell == 0).all(-1).any():
            return cell
    rows = torch.where(pbc[..., None], cell, torch.zeros_like(cell))
    for k in range(3):  # each pass uses the rows that earlier passes completed
        first, second = rows[:, (k + 1) % 3], rows[:, (k + 2) % 3]
        missing = (rows[:, k] == 0).all(-1)
        rows = rows.clone()
        rows[:, k] = torch.where(missing[:, None], _orthogonal(first, second, eye), rows[:, k])
    return rows


def _orthogonal(first: Tensor, second: Tensor, eye: Tensor) -> Tensor:
    """A unit vector [S,3] orthogonal to both; either or both may be zero."""
    both = torch.linalg.cross(first, second)
    some = torch.where((first == 0).all(-1, keepdim=True), second, first)
    # The axis with the smallest component of `some` is never parallel to it.
    axis = eye[torch.arange(len(some), device=some.device), some.abs().argmin(-1)]
    one = torch.linalg.cross(some, axis)
    one = torch.where((some == 0).all(-1, keepdim=True), axis, one)
    vector = torch.where((both == 0).all(-1, keepdim=True), one, both)
    return vector / torch.linalg.vector_norm(vector, dim=-1, keepdim=True)


def wrap(positions: Tensor, cell: Tensor, pbc: Tensor, system_index: Tensor) -> tuple[Tensor, Tensor]:
    """Moves atoms into their cell: (wrapped [N,3], images [N,3] int64), positions = wrapped + images @ cell.

    Along periodic directions the fractional coordinates of the result are in [0, 1), up to rounding; others are kept.
    """
    inverse = torch.linalg.inv(complete(cell, pbc))[system_index]
    fractional = torch.einsum("ni,nij->nj", positions, inverse)
    images = torch.where(pbc[system_index], torch.floor(fractional), torch.zeros_like(fractional))
    wrapped = positions - torch.einsum("ni,nij->nj", images, cell[system_index])
    return wrapped, images.to(torch.int64)


def recentre(positions: Tensor, cell: Tensor, pbc: Tensor, system_index: Tensor) -> Tensor:
    """Positions [N,3] near the origin: wrapped along periodic directions, centred along the others.

    Atoms move by lattice vectors, and systems by a translation, so energies do not change. Applied before positions are
    rounded to float32, whose resolution is 1e-4 Å at 1000 Å but 1e-6 Å at 10 Å.
    """
    full = complete(cell, pbc)
    fractional = torch.einsum("ni,nij->nj", positions, torch.linalg.inv(full)[system_index])
    counts = torch.bincount(system_index, minlength=len(cell)).clamp(min=1)
    mean = torch.zeros_like(cell[:, 0]).index_add(0, system_index, fractional) / counts[:, None]
    moves = torch.where(pbc[system_index], torch.floor(fractional), mean[system_index])
    return positions - torch.einsum("ni,nij->nj", moves.detach(), full[system_index])


def require_lattice(cell: Tensor, pbc: Tensor) -> None:
    """Raises ValueError unless every cell [S,3,3] is finite and spans its periodic directions."""
    if not torch.isfinite(cell).all():
        raise ValueError(f"cell must be finite, got {cell.tolist()}")
    if pbc.device.type == "cpu" and not pbc.any():
        return
    lengths = torch.linalg.vector_norm(cell, dim=-1)
    bare = pbc & (lengths == 0)
    if bare.any():
        system, direction = (int(i) for i in bare.nonzero()[0])
        raise ValueError(
            f"a periodic direction needs a lattice vector: pbc is True along direction {direction} "
            f"but cell[{direction}] is zero (system {system})"
        )
    full = complete(cell, pbc)
    sizes = torch.linalg.vector_norm(full, dim=-1).prod(-1)
    flat = volume(full) < FLATTEST * sizes
    if flat.any():
        system = int(flat.nonzero()[0, 0])
        raise ValueError(
            "the lattice vectors of the periodic directions must be linearly independent, "
            f"got {cell[system].tolist()} (system {system})"
        )


def strained_positions(positions: Tensor, strain: Tensor, system_index: Tensor) -> Tensor:
    """Positions [N,3] of structures deformed by the symmetric part of strain [S,3,3]."""
    symmetric = (strain + strain.transpose(1, 2)) / 2
    return positions + torch.einsum("ni,nij->nj", positions, symmetric.index_select(0, system_index))


def strained_cell(cell: Tensor, strain: Tensor | None) -> Tensor:
    """Cells [S,3,3] of structures deformed by the symmetric part of strain [S,3,3]; None: as they are."""
    return cell if strain is None else cell + cell @ ((strain + strain.transpose(1, 2)) / 2).to(cell.dtype)


def per_volume(virial: Tensor, cell: Tensor) -> Tensor:
    """Stress [S,3,3] from ∂E/∂strain and the cell; NaN for cells without volume."""
    size = volume(cell)[:, None, None]
    return torch.where(size > 0, virial / torch.where(size > 0, size, 1.0), torch.nan)
