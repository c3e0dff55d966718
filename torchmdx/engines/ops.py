"""The operations of a TensorNet, one readable function each: the oracle of every kernel. Derivatives are autograd's.

::

    | operation | formula | in kernels |
    |---|---|---|
    | geometry, cut | r = |d|, d / r; the cutoff function | edge_geometry, pair_values |
    | embed | Σ_j f(r_ij) Z_ij (1 + [d]× + (d dᵀ - 1/3)) | embedding_sum, element_sums, pair_forms |
    | normalise | X / (|X|² + 1) | nine, atom_functions |
    | message | Σ_j f(r_ij) Y_j + f(0) Y_i | messages, multilinear, pair_forms |
    | product, update | f (Y M + M Y) or 2 Y M; X + D + f D D | nine, interaction, atom_functions |
    | readout | squared norms of the three parts | readout |
    | equilibrate | charges that sum to that of their system | charge_equilibration |
    | coulomb | Coulomb energies of pairs | coulomb |
    | slope | derivative of an activation | activations, edge_maps |
    | scatter_forces | forces and virials from gradients of edge vectors | forces |

The formulas stand in `torchmdx/models`, where the networks use them; this module names them for tests of kernels. Only
what the networks leave to autograd is written here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchmdx.models.activations import ACTIVATIONS
from torchmdx.models.charge_equilibration import equilibrated as equilibrate
from torchmdx.models.cutoff import cosine_cutoff as cut
from torchmdx.models.embedding import embedded as embed
from torchmdx.models.embedding import geometry
from torchmdx.models.interaction import message
from torchmdx.models.interaction import message_product as product
from torchmdx.models.interaction import normalised as normalise
from torchmdx.models.interaction import updated as update
from torchmdx.models.priors.coulomb import Coulomb as coulomb
from torchmdx.models.tensors import invariants as readout
from torchmdx.neighbors.edges import Edges

__all__ = [
    "coulomb", "cut", "embed", "equilibrate", "geometry", "message", "normalise", "product", "readout",
    "scatter_forces", "slope", "update",
]  # fmt: skip


def slope(z: Tensor, activation: str = "silu") -> Tensor:
    """The derivative of an activation at z, of any shape."""
    with torch.enable_grad():
        z = z.detach().requires_grad_()
        (found,) = torch.autograd.grad(ACTIVATIONS[activation]()(z).sum(), z)
    return found


def scatter_forces(edges: Edges, vectors: Tensor, gradient: Tensor, system_index: Tensor) -> tuple[Tensor, Tensor]:
    """Forces [N,3] and virials [S,3,3] = ∂E/∂strain from edge vectors [E,3] and ∂E/∂vectors [E,3].

    F_i = Σ (gradient of edges with target i) - Σ (of edges with source i), since d = r_source - r_target + shift.
    W_s = Σ (d gᵀ + g dᵀ) / 2 over the edges of system s
    """
    forces = vectors.new_zeros(edges.num_atoms, 3).index_add(0, edges.target, gradient)
    forces = forces.index_add(0, edges.source, -gradient)
    outer = vectors[:, :, None] * gradient[:, None, :]
    systems = int(system_index.max()) + 1 if len(system_index) else 0
    virials = vectors.new_zeros(systems, 3, 3).index_add(0, system_index[edges.target], (outer + outer.mT) / 2)
    return forces, virials
