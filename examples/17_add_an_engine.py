"""Adds an engine: a small PaiNN, its messages as one Triton kernel, registered, planned and checked.

docs/what_runs.md explains engines. `PaiNN` is the readable reference, `messages` its one operation that has a kernel,
`FusedPaiNN` the same network with the kernel. Without a GPU the kernel runs in Triton's interpreter, slowly.
"""

import copy
import math
import os
from dataclasses import dataclass, replace

import ase.build
import torch
from torch import Tensor, nn

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before triton is imported

import triton
import triton.language as tl

import torchmdx
from torchmdx.engines import Outputs, Request, marked, register_engine
from torchmdx.engines.conformance import check_engine
from torchmdx.evaluation import differentiate
from torchmdx.evaluation.conformance import check
from torchmdx.models import Potential
from torchmdx.neighbors import Edges
from torchmdx.structures import Batch


@dataclass(frozen=True, kw_only=True)
class PaiNNConfig:
    """Settings. num_channels and num_radial are powers of two for the kernel's sake only."""

    num_channels: int = 32  # C
    num_layers: int = 2
    num_radial: int = 8  # R
    cutoff: float = 4.0  # Å
    max_z: int = 18


def messages(edges: Edges, vectors: Tensor, sent: Tensor, v: Tensor, filters: Tensor, cutoff: float) -> Tensor:
    """Sums (Σ_j s_ij, Σ_j v_j a_ij + d_ij b_ij) [N,4,C] over neighbours, where (s, a, b)_ij = sent_j · W g(r_ij).

    vectors [E,3] Å, sent [N,3,C], v [N,3,C], filters W [R,3,C]. g: Gaussians times the cosine cutoff.
    """
    r = torch.linalg.vector_norm(vectors, dim=-1)
    inside = ~(r >= cutoff)  # also NaN, which must reach the energy
    near = torch.where(inside, r, cutoff)
    centres = torch.linspace(0, cutoff, len(filters), dtype=r.dtype, device=r.device)
    envelope = torch.where(inside, 0.5 * (torch.cos(near * (math.pi / cutoff)) + 1), 0.0)
    g = torch.exp(-(((near[:, None] - centres) * (len(filters) / cutoff)) ** 2)) * envelope[:, None]
    s, a, b = (sent.index_select(0, edges.source) * torch.einsum("er,rkc->ekc", g, filters)).unbind(1)
    moved = v.index_select(0, edges.source) * a[:, None] + (vectors / r[:, None])[:, :, None] * b[:, None]
    return sent.new_zeros(len(sent), 4, sent.shape[2]).index_add(0, edges.target, torch.cat([s[:, None], moved], 1))


class PaiNN(nn.Module):
    """Features [N,C] from scalars s [N,C] and vectors v [N,3,C] of atoms (arXiv 2102.03150)."""

    def __init__(self, config: PaiNNConfig) -> None:
        super().__init__()
        self.config, c = config, config.num_channels
        self.elements = nn.Embedding(config.max_z + 1, c)
        layers = range(config.num_layers)
        self.filters = nn.ParameterList(torch.randn(config.num_radial, 3, c) for _ in layers)
        self.senders = nn.ModuleList(nn.Sequential(nn.Linear(c, c), nn.SiLU(), nn.Linear(c, 3 * c)) for _ in layers)
        self.mixes = nn.ModuleList(nn.Linear(c, 2 * c, bias=False) for _ in layers)
        self.updates = nn.ModuleList(nn.Sequential(nn.Linear(2 * c, c), nn.SiLU(), nn.Linear(c, 3 * c)) for _ in layers)

    def messages(self, edges: Edges, vectors: Tensor, sent: Tensor, v: Tensor, filters: Tensor) -> Tensor:
        return messages(edges, vectors, sent, v, filters, self.config.cutoff)

    def forward(self, edges: Edges, vectors: Tensor, atomic_numbers: Tensor, charge: Tensor) -> Tensor:
        """Features [N,C] from edge vectors [E,3] Å and atomic_numbers [N]; the charge is ignored."""
        s = self.elements(atomic_numbers)
        v = s.new_zeros(len(s), 3, s.shape[1])
        for filters, send, mix, update in zip(self.filters, self.senders, self.mixes, self.updates, strict=True):
            sums = self.messages(edges, vectors, send(s).unflatten(1, (3, -1)), v, filters)
            s, v = s + sums[:, 0], v + sums[:, 1:]
            left, right = mix(v).chunk(2, dim=-1)
            of_s, of_dot, of_v = update(torch.cat([s, (right**2).sum(1)], dim=1)).chunk(3, dim=1)
            s, v = s + of_s + of_dot * (left * right).sum(1), v + of_v[:, None] * left
        return torch.tanh(s)


@triton.jit
def sum_messages(
    VECTORS, ROW_PTR, SOURCE, SENT, V, FILTERS, OUT, cutoff, C: tl.constexpr, R: tl.constexpr
):  # fmt: skip
    """`messages` of one atom by each program: nothing is stored for an edge."""
    i, c, k = tl.program_id(0), tl.arange(0, C), tl.arange(0, R)
    tile = k[:, None] * (3 * C) + c[None, :]
    w_s, w_a, w_b = tl.load(FILTERS + tile), tl.load(FILTERS + tile + C), tl.load(FILTERS + tile + 2 * C)
    s = tl.zeros((C,), tl.float32)
    vx, vy, vz = s, s, s
    for e in range(tl.load(ROW_PTR + i), tl.load(ROW_PTR + i + 1)):
        x, y, z = tl.load(VECTORS + 3 * e), tl.load(VECTORS + 3 * e + 1), tl.load(VECTORS + 3 * e + 2)
        r = tl.sqrt(x * x + y * y + z * z)
        inside = (r >= cutoff) == 0
        near = tl.where(inside, r, cutoff)
        envelope = tl.where(inside, 0.5 * (tl.cos(near * (3.141592653589793 / cutoff)) + 1.0), 0.0)
        u = (near - k * (cutoff / (R - 1))) * (R / cutoff)
        g = (tl.exp(-u * u) * envelope)[:, None]
        sent, other = SENT + tl.load(SOURCE + e) * (3 * C) + c, V + tl.load(SOURCE + e) * (3 * C) + c
        s += tl.sum(g * w_s, 0) * tl.load(sent)
        a, b = tl.sum(g * w_a, 0) * tl.load(sent + C), tl.sum(g * w_b, 0) * tl.load(sent + 2 * C) / r
        vx += a * tl.load(other) + b * x
        vy += a * tl.load(other + C) + b * y
        vz += a * tl.load(other + 2 * C) + b * z
    out = OUT + i * (4 * C) + c
    tl.store(out, s)
    tl.store(out + C, vx)
    tl.store(out + 2 * C, vy)
    tl.store(out + 3 * C, vz)


class FusedMessages(torch.autograd.Function):
    """The kernel forward; backward the derivative of the readable operation, until a second kernel takes its place."""

    @staticmethod
    def forward(ctx, edges, vectors, sent, v, filters, cutoff):
        ctx.edges, ctx.cutoff = edges, cutoff
        ctx.save_for_backward(vectors, sent, v, filters)
        out = sent.new_zeros(len(sent), 4, sent.shape[2])
        if len(sent):
            given = (x.contiguous() for x in (vectors, edges.row_ptr, edges.source, sent, v, filters))
            sum_messages[(len(sent),)](*given, out, cutoff, C=sent.shape[2], R=len(filters))
        return out

    @staticmethod
    def backward(ctx, gradient):
        inputs = [x.detach().requires_grad_(x.is_floating_point()) for x in ctx.saved_tensors]
        with torch.enable_grad():
            found = torch.autograd.grad(messages(ctx.edges, *inputs, ctx.cutoff), inputs[:3], gradient)
        return None, *found, None, None


class FusedPaiNN(PaiNN):
    """The same network and weights, with the kernel."""

    def messages(self, edges: Edges, vectors: Tensor, sent: Tensor, v: Tensor, filters: Tensor) -> Tensor:
        return FusedMessages.apply(edges, vectors, sent, v, filters, self.config.cutoff)


class PaiNNEngine:
    """Energy, forces and stress of a PaiNN without priors."""

    name, table_error = "PaiNN, fused messages", 0.0
    deterministic = False  # on a GPU autograd adds gradients in any order

    def __init__(self, potential: Potential, batch: Batch, *, stress: bool) -> None:
        network = FusedPaiNN(potential.config).to(potential.device, potential.dtype)
        network.load_state_dict(potential.network.state_dict())
        self.potential = copy.deepcopy(potential).with_network(network).eval().requires_grad_(False)
        self.batch, self.stress = batch, stress

    def reserve(self, capacity: int) -> None:
        pass  # torch allocates

    def run(self, positions: Tensor, cell: Tensor, edges: Edges, *, forces: bool = True) -> Outputs:
        batch = replace(self.batch, positions=positions, cell=cell)
        with torch.set_grad_enabled(forces):
            found = differentiate(self.potential, batch, edges, forces=forces, stress=self.stress and forces)
        made = torch.zeros_like(positions) if found.forces is None else found.forces
        return marked(Outputs(found.energy, found.energies, made.to(self.potential.dtype), found.stress), batch, edges)


def serves(request: Request) -> str | None:
    """Why the engine cannot evaluate what is requested; None if it can."""
    if not isinstance(request.config, PaiNNConfig):
        return f"its network must be a PaiNN, got {request.network.kind}"
    if not request.machine.triton:
        return "it needs triton, which is not installed"
    if request.precision != "float32":
        return f"its precision must be float32, got {request.precision}"
    sizes = request.config.num_channels, request.config.num_radial
    return None if all(n & (n - 1) == 0 for n in sizes) else f"its sizes must be powers of two, got {sizes}"


def make(potential: Potential, batch: Batch, *, stress: bool, precision: str) -> PaiNNEngine:
    """The engine of the plan."""
    return PaiNNEngine(potential, batch, stress=stress)


torchmdx.register_model("painn", PaiNNConfig, PaiNN)
register_engine("painn_fused", serves, make)


def main() -> None:
    torch.manual_seed(0)
    potential = torchmdx.Potential(PaiNNConfig())
    print("the model, its readable form:")
    check(potential).require()
    print("\nthe engine, against that in float64:")
    potential = potential.to("cuda" if torch.cuda.is_available() else "cpu")
    check_engine(make, potential).require()

    atoms = ase.build.molecule("CH3CH2OH")
    step = torchmdx.CapturedStep(potential, torchmdx.System.from_ase(atoms))
    step(atoms.positions)
    print(f"\n{step.report()}")


if __name__ == "__main__":
    main()
