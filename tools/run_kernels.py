"""Launches every kernel of a step on small systems, for NVIDIA's compute-sanitizer. Needs a GPU.

    python tools/run_kernels.py                      # compiles them, which takes longer under the sanitizer
    compute-sanitizer --tool memcheck --error-exitcode 1 python tools/run_kernels.py few
    compute-sanitizer --tool racecheck --error-exitcode 1 --kernel-name-exclude kernel_substring=native \\
        --kernel-name-exclude kernel_substring=gemm python tools/run_kernels.py few

Set PYTORCH_NO_CUDA_MEMORY_CACHING=1, so that tensors do not share allocations and memcheck sees where each one ends.
Without the exclusions racecheck spends its time, many minutes, on what torch launches to make tables.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.systems import load
from torchmdx import Dynamics, Potential, System, TensorNet2Config, TensorNetConfig
from torchmdx.engines.fused import edge_maps, engine, tensornet2
from torchmdx.models.priors.coulomb import CoulombConfig
from torchmdx.step.captured_step import CapturedStep

SMALL, BOX = "alanine_dipeptide", "water150"


@dataclass(frozen=True)
class Case:
    """A structure, with a TensorNet or a TensorNet2 with Coulomb energy, and what makes a step take special kernels.

    constants: of engines/fused/tensornet2.py, with which few edges use the kernels for many.
    edge_maps: kernels of CUDA C++ for the network of edges, not Triton's.
    coulomb: whether a TensorNet2 has Coulomb energy.
    tile_atoms: from how many atoms on tiles of atoms are used.
    """

    structure: str
    charged: bool = False
    constants: dict[str, int] = field(default_factory=dict)
    tile_atoms: int = engine.TILE_ATOMS
    edge_maps: bool = False
    coulomb: bool = True


CASES = {
    "few": Case(SMALL),
    "some": Case("chignolin"),
    "many": Case("water200"),
    "tiles": Case("water200", tile_atoms=1),
    "charged-few": Case(SMALL, charged=True),
    "charged-rows": Case(SMALL, charged=True, coulomb=False),
    "charged-box": Case(BOX, charged=True),
    "charged-two-maps": Case(BOX, charged=True, constants={"MANY_EDGE_ROWS": 1}),
    "charged-pieces": Case(BOX, charged=True, constants={"MANY_EDGE_ROWS": 1, "MOST_ROWS": 0, "PIECE": 4096}),
    "charged-maps": Case(BOX, charged=True, constants={"MANY_EDGE_ROWS": 1}, edge_maps=True),
}
DYNAMICS = "dynamics"  # also a case: steps of few atoms inside one launch


def potential_of(case: Case) -> Potential:
    """On the GPU, with random weights."""
    torch.manual_seed(0)
    config = TensorNet2Config(num_layers=1) if case.charged else TensorNetConfig()
    priors = [CoulombConfig()] if case.charged and case.coulomb else []
    return Potential(config, priors).requires_grad_(False).cuda()


def run(name: str, case: Case) -> None:
    """Runs two evaluations without a graph: the first builds the list, the second reuses it."""
    places = [(engine, "TILE_ATOMS", case.tile_atoms), *((tensornet2, k, v) for k, v in case.constants.items())]
    if not case.edge_maps:
        places.append((edge_maps, "CAPABILITY", None))
    before = [getattr(module, key) for module, key, _ in places]
    for module, key, value in places:
        setattr(module, key, value)
    numbers, positions, cell = load(case.structure)
    system = System.create(positions, numbers, cell=cell, pbc=cell is not None, device="cuda")
    step = CapturedStep(potential_of(case), system, mode="eager", stress=cell is not None, skin=0.3)
    for _ in range(2):
        forces = step(positions).forces
    print(f"{name}: {step.report().engine}, largest force {abs(forces).max():.3g} eV/Å", flush=True)
    for (module, key, _), value in zip(places, before, strict=True):
        setattr(module, key, value)


def run_dynamics() -> None:
    """Six steps with heavy atoms, in replays of three."""
    numbers, positions, _ = load(SMALL)
    options = dict(integrator="langevin", steps_per_replay=3, timestep=1.0, masses=np.full(len(numbers), 1e8))
    dynamics = Dynamics(potential_of(Case(SMALL)), [System.create(positions, numbers)], **options)
    dynamics.run(6)
    print(f"{DYNAMICS}: energy {float(dynamics.snapshot().energy.sum()):.6g} eV", flush=True)


def main() -> None:
    """Runs the named cases, or all."""
    names = [*CASES, DYNAMICS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(names)}; default: all")
    cases = parser.parse_args().cases or names
    if unknown := set(cases) - set(names):
        parser.error(f"cases must be of {', '.join(names)}, got {', '.join(sorted(unknown))}")
    for name in cases:
        run(name, CASES[name]) if name in CASES else run_dynamics()


if __name__ == "__main__":
    main()
