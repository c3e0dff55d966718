"""The Ewald sums and meshes that `electrostatics_peers` compares, each in the best mode of its library."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from benchmarks import electrostatics
from torchmdx import Batch
from torchmdx.engines.reciprocal import differentiate_reciprocal
from torchmdx.models.priors.base import Geometry
from torchmdx.models.priors.coulomb import Coulomb, CoulombConfig
from torchmdx.models.priors.ewald import TWO_PI, dual, half_of
from torchmdx.models.priors.splitting import Splitting
from torchmdx.neighbors.edges import Edges
from torchmdx.neighbors.explicit import search_explicitly
from torchmdx.structures.units import COULOMB

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
ACCURACY, EXACT_ACCURACY = 1e-5, 1e-9
SIZES = (12, 14, 16, 18, 20, 24, 28, 32, 36, 40, 48, 54, 60, 64, 72, 80, 90, 100, 112, 128, 144, 160, 180, 200)
MOST_COPIED = 400_000_000  # pairs in all copies of a system

Found = tuple[Tensor, Tensor, Tensor]  # energy [], forces [N,3], gradient in the charges [N,M]
Run = Callable[[], Found]


class Sum:
    """What is summed: charges [N,M], of which every set counts alike, and lists of pairs by cutoff."""

    def __init__(self, batch: Batch, charges: Tensor) -> None:
        self.batch, self.charges, self.lists = batch, charges, {}  # type: ignore[var-annotated]
        self.exact = exactly(batch, charges)

    def edges(self, cutoff: float) -> Edges:
        if cutoff not in self.lists:
            self.lists = {cutoff: search_explicitly(self.batch, cutoff)}
        return self.lists[cutoff]

    def errors(self, found: Found) -> tuple[float, float]:
        return tuple(electrostatics.relative(a.double(), b) for a, b in zip(found[1:], self.exact[1:], strict=True))  # type: ignore[return-value]


def prior_for(num_sets: int, **settings: Any) -> Coulomb:
    """All sets of charges count fully: the strength makes up for weights that add up to 1."""
    config = CoulombConfig(damping=1e-3, strength=num_sets * COULOMB, **settings)
    return Coulomb(config, num_sets).to(DEVICE)


def exactly(batch: Batch, charges: Tensor) -> Found:
    """In float64, by another program path than the kernels: in torch, pairs by autograd."""
    settings = dict(periodic="ewald", accuracy=EXACT_ACCURACY, cutoff=9.0 if GPU else 6.0)
    prior, charges = prior_for(charges.shape[1], **settings), charges.double().requires_grad_()
    flag, places = torch.zeros((), dtype=torch.bool, device=DEVICE), batch.positions.detach().requires_grad_()
    far = differentiate_reciprocal(prior, batch, charges, flag)
    edges = search_explicitly(batch, prior.config.cutoff)
    distance = edges.vectors(places, batch.cell, batch.system_index).norm(dim=-1)
    near = prior.within_cutoff(Geometry(batch, edges, distance, places, charges), charges).sum()
    slope, pull = torch.autograd.grad(near, [places, charges])
    return (near.detach() + far.energies.sum(), -(slope + far.slope), pull + far.pull)


def own(given: Sum, method: str, cutoff: float | None) -> Iterator[tuple[str, Run]]:
    """torchmdx's kernels, as an engine launches them. cutoff None: that of a captured step."""
    from torchmdx.engines.gpu.branches import in_branch
    from torchmdx.engines.gpu.triton import coulomb, reciprocal

    batch, (count, sets) = given.batch, given.charges.shape
    volume = float(torch.linalg.det(batch.cell[0]))
    cutoff = cutoff or (10.0 if method == "pme" else round(Splitting.balanced(ACCURACY, volume).cutoff, 2))
    prior = prior_for(sets, periodic=method, accuracy=ACCURACY, cutoff=cutoff)
    prior.keep_lists()
    wide = 1 if sets == 1 else 16
    blocks = given.charges.T.reshape(-1, wide, count).transpose(1, 2).contiguous()
    edges, new = given.edges(cutoff), blocks.new_zeros
    out = coulomb.Found(new(count, dtype=torch.float64), new(count, 3), torch.empty_like(blocks), None)
    pairs, waves = (kind(prior, batch, wide, wide) for kind in (coulomb.DirectCoulomb, reciprocal.DirectReciprocal))
    vectors = prior.vectors_for(batch, given.charges, edges.overflow)

    def run() -> Found:
        out.energies.zero_()
        with in_branch(batch.positions.device, 3) as branch:
            branch.run(lambda: waves.run(vectors, batch, blocks, edges.overflow, forces=True))
            pairs.run(batch, edges, blocks, out, add=False)
        waves.add(batch, blocks, out)
        return out.energies.sum(), out.forces, out.pull.transpose(1, 2).reshape(sets, count).T

    yield f"{cutoff:g} Å, {vectors.size}", run


def nvalchemi(given: Sum, method: str, cutoff: float | None) -> Iterator[tuple[str, Run]]:
    """Meshes of rising size. Copies of the system, one for each set of charges."""
    from nvalchemiops.torch.interactions import electrostatics as ops

    batch, (count, sets), cutoff = given.batch, given.charges.shape, cutoff or 9.0
    edges, split = given.edges(cutoff), Splitting.of(ACCURACY, cutoff)
    if edges.capacity * sets > MOST_COPIED:
        raise MemoryError(f"{edges.capacity * sets:,} pairs in {sets} copies")
    copies = torch.arange(sets, device=DEVICE)
    both = torch.stack([(ends + copies[:, None] * count).flatten() for ends in (edges.target, edges.source)]).int()
    starts = (edges.row_ptr[:-1] + copies[:, None] * edges.capacity).flatten()
    end = starts.new_tensor([edges.capacity * sets])
    positions, cell = batch.positions.float().repeat(sets, 1), batch.cell.float().repeat(sets, 1, 1)
    options: dict[str, Any] = dict(
        alpha=torch.full((sets,), split.alpha, device=DEVICE),
        neighbor_list=both,
        neighbor_ptr=torch.cat([starts, end]).int(),
        neighbor_shifts=edges.shifts.int().repeat(sets, 1),
        batch_idx=copies.int().repeat_interleave(count) if sets > 1 else None,
        compute_forces=True,
        compute_charge_gradients=True,
        energy_reduction="system",
    )
    charges, ewald = given.charges.T.flatten().contiguous(), method == "ewald"
    if ewald:
        k = half_of(batch.cell[0], split.longest) @ (TWO_PI * dual(batch.cell)[0])
        if len(k) * count * sets * 16 > 40e9:
            raise MemoryError(f"{len(k) * count * sets * 16 / 1e9:.0f} GB of phases")
        options |= dict(k_vectors=k.float().expand(sets, -1, -1) if sets > 1 else k.float())
        options |= dict(max_atoms_per_system=count) if sets > 1 else {}
    function = ops.ewald_summation if ewald else ops.particle_mesh_ewald
    length = float(batch.cell[0].diagonal().max())
    for n in [0] if ewald else [n for n in SIZES if n >= 3 * split.alpha * length]:
        more = {} if ewald else mesh_of(ops, cell if sets > 1 else cell[:1], n)

        def run(more: dict[str, Any] = more) -> Found:
            energy, forces, pull = function(positions, charges, cell, **options, **more)
            forces = forces.view(sets, count, 3).sum(0)
            return COULOMB * energy.sum(), COULOMB * forces, COULOMB * pull.view(sets, count).T

        yield f"{cutoff:g} Å, {f'{len(k):,} vectors' if ewald else f'{n}³, order 5'}", run


def mesh_of(ops: Any, cell: Tensor, n: int, order: int = 5) -> dict[str, Any]:
    """What particle_mesh_ewald can be given of a cell that stays."""
    from nvalchemiops.torch.interactions.electrostatics.pme import compute_bspline_moduli_1d

    k, square = ops.generate_k_vectors_pme(cell, (n, n, n))
    whole, half = (torch.fft.fftfreq(n, 1 / n, device=DEVICE), torch.fft.rfftfreq(n, 1 / n, device=DEVICE))
    along = [compute_bspline_moduli_1d(m, n, order) for m in (whole, whole, half)]
    given = dict(mesh_dimensions=(n, n, n), spline_order=order, k_vectors=k, k_squared=square)
    given |= dict(cell_inv_t=torch.linalg.inv(cell).transpose(1, 2).contiguous(), volume=torch.linalg.det(cell).abs())
    return given | dict(zip(("moduli_x", "moduli_y", "moduli_z"), along, strict=True))


def torchpme(given: Sum, method: str, cutoff: float | None) -> Iterator[tuple[str, Run]]:
    """Meshes of rising size."""
    import torchpme as peer

    batch, charges, cutoff = given.batch, given.charges.clone().requires_grad_(), cutoff or 9.0
    edges, split = given.edges(cutoff), Splitting.of(ACCURACY, cutoff)
    once = edges.source < edges.target
    assert bool((edges.source != edges.target)[edges.filled()].all()), "an atom and its own image"
    pairs, positions = torch.stack([edges.target, edges.source], 1)[once].long(), batch.positions.float()
    cell, periodic = batch.cell[0].float(), torch.ones(3, dtype=torch.bool, device=DEVICE)
    moved, positions = edges.shifts[once].float() @ cell, positions.requires_grad_()
    potential = peer.CoulombPotential(smearing=math.sqrt(0.5) / split.alpha, prefactor=COULOMB)
    half = half_of(batch.cell[0], split.longest) @ (TWO_PI * dual(batch.cell)[0])
    length = float(batch.cell[0].diagonal().max())
    kinds = {"pme": (peer.PMECalculator, 7), "p3m": (peer.P3MCalculator, 5)}
    for n in [0] if method == "ewald" else [n for n in (16, 32, 64, 128, 256) if n >= 2 * split.alpha * length]:
        if method == "ewald":
            given_k = dict(kvectors=torch.cat([half, -half]).float())
            calculator, size = peer.EwaldCalculator(potential, lr_wavelength=1.0), f"{len(half):,} vectors"
        else:
            kind, nodes = kinds[method]
            calculator, given_k = kind(potential, 2.2 * length / n, interpolation_nodes=nodes), {}
            size = f"{n}³, {nodes} nodes"
        calculator = calculator.to(device=DEVICE, dtype=torch.float32)

        def energy_of(x: Tensor, q: Tensor, calculator: Any = calculator, given_k: Any = given_k) -> Tensor:
            distances = (x[pairs[:, 1]] - x[pairs[:, 0]] + moved).norm(dim=-1)
            near = calculator._compute_rspace(q, pairs, distances)
            far = calculator._compute_kspace(q, cell, x, periodic=periodic, **given_k)
            return (q * (near + far)).sum()

        def run(energy_of: Callable[[Tensor, Tensor], Tensor] = energy_of) -> Found:
            energy = energy_of(positions, charges)
            slope, pull = torch.autograd.grad(energy, [positions, charges])
            return energy.detach(), -slope, pull

        run.energy_of, run.reads_host = energy_of, method != "ewald"  # type: ignore[attr-defined]
        yield f"{cutoff:g} Å, {size}", run


LIBRARIES: dict[str, tuple[Callable[[Sum, str, float | None], Iterator[tuple[str, Run]]], dict[str, tuple]]] = {
    "torchmdx": (own, {"ewald": (None,), "pme": (None,)}),
    "nvalchemi-toolkit-ops": (nvalchemi, {"ewald": (9.0, 12.0), "pme": (7.0, 9.0)}),
    "torch-pme": (torchpme, {"ewald": (9.0, 12.0), "pme": (7.0, 9.0), "p3m": (7.0, 9.0)}),
}
