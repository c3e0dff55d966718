"""Compares the C code of the CPU with the reference on random structures: fuzz_cpu.py [COUNT] [--start K].

0 to 300 atoms in batches of one to three systems; all periodicities; cells that are collapsed, huge, skewed, without
volume or left-handed; atoms at one place, far from the origin, or not finite. The neighbour search is compared with
brute_force, pair by pair; energies, forces and virials of the engine, with every instruction set, with the reference
model in float64. Structure K is the same in every run: `--start K 1` repeats it alone.

The structures of a part run in a process of their own, so that a crash is reported with its structure.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
PART = 500  # structures of one process
# Of differences, by the size of the terms that are summed.
LIMIT = 1e-5
CUTOFF = 4.0
MOST_EDGES = 10_000  # more take the reference too long
CONFIGS: tuple[dict[str, Any], ...] = (
    dict(num_channels=16, num_radial=8, num_layers=2),
    dict(num_channels=40, num_radial=6, num_layers=1, group="SO(3)", num_head_layers=2),
    dict(num_channels=10, num_radial=4, num_layers=0, activation="ssp"),
    dict(num_channels=33, num_radial=8, num_layers=3, activation="mish", radial_basis="gauss"),
    dict(num_channels=16, num_radial=8, num_layers=2, head="gated", readout_activation=False, charge_factor=False),
    dict(num_channels=24, num_radial=6, num_layers=2, messages="target", self_message=False),
    dict(num_channels=16, num_radial=8, num_layers=1, num_charges=4),
)
Structure = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # positions, numbers, cell, pbc


def random_cell(random: np.random.Generator) -> np.ndarray:
    """Collapsed, small, large or huge; skewed, turned, or without some of its vectors."""
    width = float(10 ** random.uniform(-0.3, 1.6)) if random.random() < 0.9 else float(10 ** random.uniform(2, 5))
    cell = np.eye(3) * width * random.uniform(0.6, 1.6, 3)
    kind = random.integers(0, 5)
    if kind == 1:
        cell += 0.3 * width * random.normal(size=(3, 3))
    elif kind == 2:  # the same lattice, described by long vectors
        cell[1] += random.integers(-3, 4) * cell[0]
        cell[2] += random.integers(-3, 4) * cell[0] + random.integers(-2, 3) * cell[1]
    elif kind == 3:  # one height is far smaller than the others
        cell[random.integers(0, 3)] *= 0.2
    turn, _ = np.linalg.qr(random.normal(size=(3, 3)))
    return cell @ turn if kind else cell[random.permutation(3)]


def structure(random: np.random.Generator) -> Structure:
    """One random system, whose expected number of edges is bounded."""
    cell, pbc = random_cell(random), random.random(3) < 0.5
    heights = 1 / np.linalg.norm(np.linalg.inv(cell), axis=0)
    size = heights.min() if random.random() < 0.8 else float(random.uniform(0.1, 2))
    region = np.where(pbc, heights, np.maximum(size, 1e-3))
    images = np.prod(np.where(pbc, 1 + 2 * CUTOFF / heights, 1.0))
    near = images * min(1.0, float(np.prod(np.minimum(2 * CUTOFF / np.where(pbc, heights + 2 * CUTOFF, region), 1.0))))
    most = int(min(300, np.sqrt(MOST_EDGES / 3 / max(near, 1e-3))))
    count = int(random.integers(0, 4)) if random.random() < 0.1 else int(random.integers(0, most + 1))
    fractional = random.uniform(-0.5, 1.5, (count, 3)) * np.where(pbc, 1.0, region / heights)
    positions = fractional @ cell
    kind = random.random()
    if kind < 0.05 and count > 1:  # at one place, or nearly so, or at one place but for a lattice vector
        moves = (np.zeros(3), 1e-6 * random.normal(size=3), np.where(pbc, 1.0, 0.0) @ cell)
        positions[1] = positions[0] + moves[random.integers(0, 3)]
    elif kind < 0.10:
        positions = positions + 10 ** random.uniform(1, 5) * random.normal(size=3)
    elif kind < 0.11 and count:
        positions[random.integers(0, count)] = random.choice([np.nan, np.inf])
    cell[~pbc] *= random.random() < 0.7  # vectors that do not repeat may be missing
    return positions, random.integers(1, 21, count), cell, pbc


class Fuzz:
    """Potentials of all kinds, and the comparison of one structure."""

    def __init__(self) -> None:
        sys.path.insert(0, str(ROOT))
        import torch

        from torchmdx import Potential, TensorNet2Config, TensorNetConfig

        torch.manual_seed(0)
        torch.set_num_threads(1)
        self.potentials = []
        for config in CONFIGS:
            kind = TensorNet2Config if "num_charges" in config else TensorNetConfig
            made = Potential(kind(cutoff=CUTOFF, max_z=20, **config)).float().requires_grad_(False)
            self.potentials.append((made, Potential(made.config).double().requires_grad_(False)))
            self.potentials[-1][1].load_state_dict({k: v.double() for k, v in made.state_dict().items()})

    def check(self, seed: int) -> str:
        """What became of a structure: "equal", or why it was left out. Raises AssertionError for a difference."""
        import torch

        from torchmdx import Batch, EdgeSearch, System
        from torchmdx.neighbors.brute_force import brute_force

        random = np.random.default_rng(seed)
        found = [structure(random) for _ in range(1 if random.random() < 0.7 else random.integers(2, 4))]
        charges = [float(random.integers(-2, 3)) for _ in found]
        plain = [r if np.isfinite(r).all() else np.nan_to_num(r, posinf=0.0) for r, *_ in found]
        try:
            systems = [
                System.create(r, z, cell, pbc, charge=q, dtype=torch.float64)
                for r, (_, z, cell, pbc), q in zip(plain, found, charges, strict=True)
            ]
            batch = Batch.from_systems(systems)
            wanted = brute_force(batch, CUTOFF)
        except ValueError:  # CapacityError, and cells that do not span their periodic directions
            return "refused"
        if wanted.capacity > MOST_EDGES:
            return "too many edges"
        search = EdgeSearch(CUTOFF, backend="cell_list")
        capacity = int(wanted.capacity * random.uniform(0.5, 2)) + 1
        edges = search.allocate(batch, capacity)
        exact = torch.as_tensor(np.concatenate([r for r, *_ in found]).reshape(-1, 3))
        given = batch.positions.clone()
        for _ in range(5):
            edges = search.update(given, batch.cell)
            if not bool(edges.overflow):
                break
            search.grow()
        assert not bool(edges.overflow), "the list overflows though it grew"
        self._compare_lists(batch, edges, wanted)
        float32, float64 = self.potentials[seed % len(self.potentials)]
        if not torch.isfinite(exact).all():
            return self._not_finite(float32, batch, edges, exact)
        return self._compare(float32, float64, batch, edges, wanted)

    @staticmethod
    def _compare_lists(batch: Any, edges: Any, wanted: Any) -> None:
        """Lists agree, except for pairs whose distance rounds to the cutoff."""

        def keys(given: Any) -> dict[tuple[int, ...], float]:
            count = int(given.num_edges)
            vectors = given.vectors(batch.positions, batch.cell, batch.system_index)[:count]
            columns = (given.target[:count, None], given.source[:count, None], given.shifts[:count])
            rows = np.concatenate([column.numpy() for column in columns], 1).tolist()
            return dict(zip(map(tuple, rows), vectors.norm(dim=-1).tolist(), strict=True))

        found, reference = keys(edges), keys(wanted)
        assert len(found) == int(edges.num_edges), "an edge appears twice"
        size = 1e-12 * (1 + float(batch.positions.abs().max()) if len(batch.positions) else 1.0)
        for pair in found.keys() ^ reference.keys():
            distance = found.get(pair, reference.get(pair, 0.0))
            assert abs(distance - CUTOFF) < size + 1e-9, f"edge {pair} of length {distance} is in one list only"

    @staticmethod
    def _not_finite(potential: Any, batch: Any, edges: Any, exact: Any) -> str:
        """Neighbours of an atom at NaN have no finite energies; an atom at infinity has no neighbours."""
        import torch

        from torchmdx.engines.cpu.engine import CompiledTensorNet

        network = CompiledTensorNet(potential, batch.num_atoms, batch.num_systems)
        energies = network.run(batch, exact, batch.cell, edges, forces=True, virial=True).energies
        bad = torch.isnan(exact).any(-1) & (edges.row_ptr[1:] > edges.row_ptr[:-1])
        assert not torch.isfinite(energies[bad]).any(), "an atom at NaN has a finite energy"
        return "not finite"

    @staticmethod
    def _compare(float32: Any, float64: Any, batch: Any, edges: Any, wanted: Any) -> str:
        """Every instruction set against the reference, by the size of what is summed."""
        from torchmdx.engines.cpu.engine import INSTRUCTIONS, CompiledTensorNet
        from torchmdx.evaluation.derivatives import SAME_PLACE

        if not batch.num_atoms:
            return "empty"
        exact = reference(float64, batch, wanted) if shortest(batch, wanted) > SAME_PLACE else None
        for name, number in INSTRUCTIONS.items():
            network = CompiledTensorNet(float32, batch.num_atoms, batch.num_systems, name)
            if network.instructions != number:
                continue
            found = network.run(batch, batch.positions, batch.cell, edges, forces=True, virial=True)
            if exact is not None:
                for part, (value, size) in exact.items():
                    worst = float((getattr(found, part).double() - value).abs().max())
                    assert worst <= LIMIT * size, (
                        f"{name}: {part} differ by {worst:.2e}, {worst / size:.1e} of their size"
                    )
        return "equal" if exact is not None else "at one place"


def shortest(batch: Any, edges: Any) -> float:
    """The length of the shortest edge."""
    lengths = edges.vectors(batch.positions, batch.cell, batch.system_index)[: int(edges.num_edges)].norm(dim=-1)
    return float(lengths.min()) if len(lengths) else np.inf


def reference(potential: Any, batch: Any, edges: Any) -> dict[str, tuple[Any, float]]:
    """Energies, forces and virials of the model in float64, and the size of the terms that each is the sum of."""
    import torch

    vectors = edges.vectors(batch.positions, batch.cell, batch.system_index).requires_grad_()
    energy, energies, _ = potential.outputs(batch, edges, vectors, batch.positions)
    (pull,) = torch.autograd.grad(energy.sum(), vectors, allow_unused=True)
    pull = torch.zeros_like(vectors) if pull is None else pull
    forces = torch.zeros_like(batch.positions).index_add(0, edges.target.long(), pull)
    forces = forces.index_add(0, edges.source.long(), -pull)
    per_edge = pull[:, :, None] * vectors.detach()[:, None]
    system = batch.system_index[edges.target.long()]
    virial = torch.zeros(batch.num_systems, 3, 3, dtype=torch.float64).index_add(0, system, per_edge)
    terms = torch.zeros(batch.num_atoms, dtype=torch.float64).index_add(0, edges.target.long(), pull.norm(dim=-1))
    least = 1.0  # the energy of an atom is about 1 eV, forces between atoms about 1 eV/Å
    return {
        "energies": (energies.detach(), least + float(energies.detach().abs().max())),
        "forces": (forces, least + 2 * float(terms.max())),
        "virial": ((virial + virial.mT) / 2, least + float(per_edge.abs().sum())),
    }


def run_part(start: int, count: int, progress: Path) -> int:
    """In a process of its own: compares structures, and writes what became of them."""
    fuzz, became = Fuzz(), Counter[str]()
    for seed in range(start, start + count):
        progress.write_text(str(seed))
        try:
            became[fuzz.check(seed)] += 1
        except Exception as error:  # any failure is one of this structure
            print(f"fuzz_cpu: structure {seed}: {type(error).__name__}: {error}", flush=True)
            became["FAILED"] += 1
    progress.write_text(repr(dict(became)))
    return int(became["FAILED"] > 0)


def main(arguments: list[str] | None = None) -> int:
    """Runs all parts; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", nargs="?", type=int, default=1000, help="structures (1000)")
    parser.add_argument("--start", type=int, default=0, help="the first structure (0)")
    parser.add_argument("--part", type=Path, help="compare in this process and write to this file")
    options = parser.parse_args(arguments)
    if options.part:
        return run_part(options.start, options.count, options.part)
    became, status, begin = Counter[str](), 0, time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        progress = Path(folder) / "progress"
        for start in range(options.start, options.start + options.count, PART):
            count = min(PART, options.start + options.count - start)
            command = [
                sys.executable,
                "-W",
                "ignore",
                __file__,
                str(count),
                "--start",
                str(start),
                "--part",
                str(progress),
            ]
            ended = subprocess.run(command, check=False).returncode
            said = progress.read_text() if progress.exists() else "nothing"
            if not said.startswith("{"):
                print(f"fuzz_cpu: structure {said}: the process ended with {ended}", flush=True)
                became["CRASHED"] += 1
                status = 1
                continue
            became.update(ast.literal_eval(said))
            status = status or ended
            done, seconds = sum(became.values()), time.perf_counter() - begin
            print(f"fuzz_cpu: {done} structures in {seconds:.0f} s: {dict(became)}", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
