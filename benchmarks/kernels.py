"""Checks and times the fast TensorNet kernels alone, without a neighbour search, on one GPU.

    python -m benchmarks.kernels [--systems NAME,NAME] [--weights random,organic-1] [--each] [--one-launch]

Energy and forces are captured in a CUDA graph and timed by events (median of replays). Errors are against the exact
model in float64 where it fits into memory; larger water boxes repeat a box that fits. --each also times every kernel.
--weights: of a random potential, or the names of trained ones.
--one-launch: the kernel that evaluates few atoms in one launch, instead of the chain; results are only printed.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import peer_model
from benchmarks.record import write
from torchmdx import Potential, TensorNetConfig
from torchmdx import load as load_potential
from torchmdx.engines.filter_table import TabulatedFilters
from torchmdx.engines.gpu import engine
from torchmdx.engines.gpu.tensornet import FastTensorNet
from torchmdx.engines.plan.launch_sizes import Tiles
from torchmdx.evaluation.derivatives import evaluate
from torchmdx.neighbors.edges import Edges, from_lists
from torchmdx.step.atom_order import curve_order
from torchmdx.structures.system import Batch

SYSTEMS = ("alanine_dipeptide", "chignolin", "dhfr", "factorIX", "water24000", "water98304", "batch1024")
ELEMENTS = {"H": 1, "C": 6, "N": 7, "O": 8, "S": 16}
EXACT_ATOMS = 6000  # largest structure for the exact model in float64


def read_pdb(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Atomic numbers and positions (Å) of the first model of a PDB file."""
    numbers, positions = [], []
    for line in path.read_text().splitlines():
        if line.startswith(("ATOM", "HETATM")):
            element = line[76:78].strip() or line[12:16].strip().lstrip("0123456789")[0]
            numbers.append(ELEMENTS[element.upper()])
            positions.append([float(line[i : i + 8]) for i in (30, 38, 46)])
        if line.startswith("END") and numbers:
            break
    return np.array(numbers), np.array(positions)


def water(num_molecules: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A box of randomly turned molecules on a grid, at the density of water."""
    rng = np.random.default_rng(0)
    length = (num_molecules / 0.0334) ** (1 / 3)
    side = int(np.ceil(num_molecules ** (1 / 3) - 1e-9))
    grid = (np.array(list(itertools.product(range(side), repeat=3)))[:num_molecules] + 0.5) * (length / side)
    shape = np.array([[0, 0, 0], [0.9572, 0, 0], [-0.2400, 0.9266, 0]])
    turns = np.linalg.qr(rng.normal(size=(num_molecules, 3, 3)))[0]
    positions = grid[:, None] + np.einsum("nij,kj->nki", turns, shape)
    return np.tile([8, 1, 1], num_molecules), positions.reshape(-1, 3), np.eye(3) * length


def load(name: str, structures: Path) -> Batch:
    """A structure in float64, its atoms along a curve. water<atoms> of 24,000 and more repeats a smaller box."""
    cell, copies = np.zeros((3, 3)), 1
    if name.startswith("water"):
        atoms = int(name[5:])
        repeats = next(r for r in (1, 2, 3, 4, 6, 8) if atoms / r**3 <= EXACT_ATOMS)
        numbers, positions, cell = water(round(atoms / 3 / repeats**3))
        steps = np.array(list(itertools.product(range(repeats), repeat=3)))
        positions = (positions[None] + (steps @ cell)[:, None]).reshape(-1, 3)
        numbers, cell = np.tile(numbers, len(steps)), cell * repeats
    elif name.startswith("batch"):
        copies = int(name[5:])
        numbers, positions = read_pdb(structures / "alanine_dipeptide.pdb")
    else:
        numbers, positions = read_pdb(structures / f"{name}.pdb")
    count = len(numbers)
    batch = Batch(
        positions=torch.tensor(positions).float().double().repeat(copies, 1),
        atomic_numbers=torch.tensor(numbers).repeat(copies),
        system_index=torch.arange(copies).repeat_interleave(count),
        cell=torch.tensor(cell).float().double().repeat(copies, 1, 1),
        pbc=torch.full((copies, 3), bool(cell.any())),
        charge=torch.zeros(copies, dtype=torch.float64),
    )
    order = curve_order(batch.positions, batch.cell, batch.pbc, batch.system_index)
    return Batch(
        batch.positions[order], batch.atomic_numbers[order], batch.system_index, batch.cell, batch.pbc, batch.charge
    )


def neighbors(batch: Batch, cutoff: float, device: str) -> Edges:
    """A full list made on the host. The edges of a periodic cell must be at least twice the cutoff."""
    from scipy.spatial import cKDTree

    positions, system = batch.positions.numpy(), batch.system_index.numpy()
    length = float(batch.cell[0, 0, 0])
    periodic = bool(batch.pbc.any())
    # Systems of a batch are moved far apart, so that one tree finds no pair between two of them.
    wrapped = positions % length if periodic else positions + 1e4 * system[:, None]
    pairs = cKDTree(wrapped, boxsize=length if periodic else None).query_pairs(cutoff, output_type="ndarray")
    target, source = np.r_[pairs[:, 0], pairs[:, 1]], np.r_[pairs[:, 1], pairs[:, 0]]
    order = np.lexsort((source, target))
    target, source = target[order], source[order]
    between = positions[source] - positions[target]
    shifts = -np.round(between / length) if periodic else np.zeros_like(between)
    tensors = (torch.tensor(x, device=device) for x in (target, source, shifts.astype(np.int32)))
    return from_lists(*tensors, num_atoms=len(positions), capacity=len(target))


def potential(channels: int = 128, layers: int = 2) -> Potential:
    """Weights somewhat larger than initial ones, as after training."""
    torch.manual_seed(0)
    made = Potential(TensorNetConfig(num_channels=channels, num_layers=layers)).requires_grad_(False).cuda()
    for layer in made.network.layers:
        for linear in layer.filters:
            if isinstance(linear, torch.nn.Linear):
                linear.weight *= 1.5
    return made


class Case:
    """One structure on the GPU with its edges, and the kernels ready to run."""

    def __init__(self, name: str, model: Potential, structures: Path, table: TabulatedFilters | None = None) -> None:
        self.name, self.model = name, model
        self.host = load(name, structures)
        self.batch = self.host.to("cuda")
        self.edges = neighbors(self.host, model.cutoff, "cuda")
        self.single = self.host.to("cuda", torch.float32)
        self.fast = FastTensorNet(model, table=table)

    def allocate(self, tiles: Tiles | None = None) -> None:
        """Buffers and kernels as of a step, or with these launch sizes, without kernels for special cases."""
        self.fast.buffers = None
        if tiles is None:
            engine.allocate(self.fast, self.batch, self.edges.capacity, stress=False)
        else:
            self.fast.allocate(self.batch.num_atoms, self.batch.num_systems, self.edges.capacity, tiles=tiles)

    def run(self, forces: bool = True, virial: bool = False) -> None:
        b = self.single
        self.fast.run(
            b.positions, b.atomic_numbers, b.system_index, b.cell, b.charge, self.edges, forces=forces, virial=virial
        )

    def graph(self, forces: bool = True) -> torch.cuda.CUDAGraph:
        """The run captured, after the kernels were compiled."""
        self.run(forces)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.run(forces)
        return graph

    def errors(self) -> tuple[float, float]:
        """(relative force error, largest error of an atom's energy in eV) against the exact model in float64."""
        if self.batch.num_systems > 1:
            return math.nan, math.nan
        out = self.fast.buffers
        result = evaluate(copy.deepcopy(self.model).double(), self.batch, self.edges)
        force = float((out.forces - result.forces).norm() / result.forces.norm())
        return force, float((out.energies - result.energies).abs().max())


def kernel_times(case: Case) -> dict[str, float]:
    """Time of each kernel in one run, ms; kernels launched once per layer are summed."""
    case.run()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(3):
            case.run()
        torch.cuda.synchronize()
    return {e.key: e.device_time_total / 3e3 for e in profile.key_averages()}


def measure(name: str, model: Potential, options: argparse.Namespace) -> dict[str, Any]:
    case = Case(name, model, options.structures)
    before = torch.cuda.memory_allocated()
    case.allocate()
    if options.one_launch:
        case.fast.use_one_launch()
    graph = case.graph()
    row: dict[str, Any] = dict(system=name, atoms=case.batch.num_atoms, edges=case.edges.capacity)
    row["ms"] = round(peer_model.milliseconds(graph.replay), 4)
    row["energy_only_ms"] = round(peer_model.milliseconds(case.graph(forces=False).replay), 4)
    row["memory_gb"] = round((torch.cuda.memory_allocated() - before) / 1e9, 3)
    table = case.fast.table
    degree = table.coefficients.shape[2] - 1
    row["table"] = dict(degree=degree, intervals=table.stretch.num_intervals, error=table.error)
    graph.replay()
    if case.batch.num_atoms <= EXACT_ATOMS:
        row["force_error"], row["energy_error"] = case.errors()
    if options.each:
        row["kernels"] = {k: round(v, 4) for k, v in kernel_times(case).items() if v > 0}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--structures", type=Path, default=Path(__file__).parent / "structures")
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--weights", default="random", help="random, or names of potentials")
    parser.add_argument("--each", action="store_true", help="also the time of every kernel")
    parser.add_argument("--one-launch", action="store_true", help="one kernel for few atoms")
    options = parser.parse_args()
    results = []
    for weights in options.weights.split(","):
        model = potential() if weights == "random" else load_potential(weights).requires_grad_(False).cuda()
        for name in options.systems.split(","):
            results.append({"weights": weights, **measure(name, model, options)})
            print(json.dumps(results[-1]), flush=True)
            if not options.one_launch:
                write("kernels", results)


if __name__ == "__main__":
    main()
