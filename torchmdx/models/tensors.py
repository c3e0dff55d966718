"""Rank-2 tensors as nine components, [N,9,C]: a scalar, a vector and a symmetric traceless matrix.

The matrix of components (s; a; q) is

::

    X = s·1  +  [  0  -az  ay ]  +  [ qxx  qxy  qxz        ]
                [  az  0  -ax ]     [ qxy  qyy  qyz        ]
                [ -ay  ax  0  ]     [ qxz  qyz  -qxx - qyy ]

stored as  0: s · 1..3: ax ay az · 4..8: qxx qxy qxz qyy qyz. TensorNet's paper writes I, A and S for the three parts.
Matrices are formed per atom, inside products only.
"""

import torch
from torch import Tensor, nn

SCALAR, VECTOR, SYMMETRIC = slice(0, 1), slice(1, 4), slice(4, 9)
PARTS = (SCALAR, VECTOR, SYMMETRIC)


def from_direction(direction: Tensor) -> Tensor:
    """Components [E,9] of 1 + [d]× + (d dᵀ - 1/3), from unit vectors d [E,3]. [d]× v is the cross product d × v."""
    x, y, z = direction.unbind(-1)
    third = 1.0 / 3.0
    return torch.stack([torch.ones_like(x), x, y, z, x * x - third, x * y, x * z, y * y - third, y * z], dim=-1)


def to_components(per_part: Tensor) -> Tensor:
    """Values of the three parts, [..,3,C], repeated for the components of each part, [..,9,C]."""
    scalar, vector, symmetric = per_part.split(1, dim=-2)
    shape = per_part.shape
    parts = [scalar, vector.expand(*shape[:-2], 3, shape[-1]), symmetric.expand(*shape[:-2], 5, shape[-1])]
    return torch.cat(parts, dim=-2)


def part_norms(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Squared Frobenius norms of the three parts of x [N,9,C], each [N,C]."""
    s, a, q = x[:, 0], x[:, VECTOR], x[:, SYMMETRIC]
    qxx, qxy, qxz, qyy, qyz = q.unbind(1)
    symmetric = qxx**2 + qyy**2 + (qxx + qyy) ** 2 + 2 * (qxy**2 + qxz**2 + qyz**2)
    return 3 * s**2, 2 * (a**2).sum(1), symmetric


def squared_norm(x: Tensor) -> Tensor:
    """Squared Frobenius norm of x [N,9,C], [N,C]."""
    scalar, vector, symmetric = part_norms(x)
    return scalar + vector + symmetric


def invariants(x: Tensor) -> Tensor:
    """Squared Frobenius norms of the three parts of x [N,9,C], one after the other, [N,3C]."""
    return torch.cat(part_norms(x), dim=-1)


def to_matrix(x: Tensor) -> Tensor:
    """Components [N,9,C] to matrices [N,3,3,C]."""
    s, ax, ay, az, qxx, qxy, qxz, qyy, qyz = x.unbind(1)
    entries = [
        s + qxx, qxy - az, qxz + ay,
        qxy + az, s + qyy, qyz - ax,
        qxz - ay, qyz + ax, s - qxx - qyy,
    ]  # fmt: skip
    return torch.stack(entries, dim=1).unflatten(1, (3, 3))


def from_matrix(matrix: Tensor) -> Tensor:
    """Matrices [N,3,3,C] to components [N,9,C]."""
    (xx, xy, xz), (yx, yy, yz), (zx, zy, zz) = (row.unbind(1) for row in matrix.unbind(1))
    s = (xx + yy + zz) / 3
    entries = [
        s, (zy - yz) / 2, (xz - zx) / 2, (yx - xy) / 2,
        xx - s, (xy + yx) / 2, (xz + zx) / 2, yy - s, (yz + zy) / 2,
    ]  # fmt: skip
    return torch.stack(entries, dim=1)


def product(x: Tensor, y: Tensor) -> Tensor:
    """Components of the matrix product XY, channel by channel."""
    return from_matrix(_matrix_product(to_matrix(x), to_matrix(y)))


def symmetric_product(x: Tensor, y: Tensor) -> Tensor:
    """Components of XY + YX, which has the parity of X and Y: needed for O(3) equivariance."""
    a, b = to_matrix(x), to_matrix(y)
    return from_matrix(_matrix_product(a, b) + _matrix_product(b, a))


def _matrix_product(a: Tensor, b: Tensor) -> Tensor:
    # matmul and einsum would copy channels to the front and multiply 3x3 matrices one by one.
    return sum((a[:, :, k, None] * b[:, None, k] for k in (1, 2)), a[:, :, 0, None] * b[:, None, 0])


class PartwiseLinear(nn.Module):
    """Mixes channels with one matrix per part, without bias: the most general equivariant linear map."""

    def __init__(self, num_channels: int) -> None:
        super().__init__()
        self.scalar = nn.Linear(num_channels, num_channels, bias=False)
        self.vector = nn.Linear(num_channels, num_channels, bias=False)
        self.symmetric = nn.Linear(num_channels, num_channels, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        maps = (self.scalar, self.vector, self.symmetric)
        # Flattened, so that each part is one matrix product instead of one per atom.
        parts = [
            linear(x[:, part].flatten(0, 1)).unflatten(0, (x.shape[0], part.stop - part.start))
            for linear, part in zip(maps, PARTS, strict=True)
        ]
        return torch.cat(parts, dim=1)
