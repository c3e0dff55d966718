r"""Launches every kernel of a step on small systems, for NVIDIA's compute-sanitizer. Needs a GPU.

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
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.systems import load
from torchmdx import Dynamics, Potential, System, TensorNet2Config, TensorNetConfig
from torchmdx.engines.plan import few_atoms, kernels, launch_sizes, machine
from torchmdx.models.priors.coulomb import CoulombConfig
from torchmdx.step.captured_step import CapturedStep

SMALL, BOX = "alanine_dipeptide", "water150"


@dataclass(frozen=True)
class Case:
    """A structure, with a TensorNet or a TensorNet2 with Coulomb energy, and what makes a step take special kernels.

    constants: of engines/plan, (module, name, value), with which few atoms and edges use the kernels for many.
    hopper: kernels of CUDA C++, not only Triton's.
    coulomb: how a TensorNet2 sums its Coulomb energy in a box; None: it has none.
    layers, head_layers: of a TensorNet2.
    """

    structure: str
    charged: bool = False
    constants: tuple[tuple[ModuleType, str, int], ...] = ()
    hopper: bool = True
    coulomb: str | None = "reaction_field"
    layers: int = 1
    head_layers: int = 0

    def network(self) -> TensorNet2Config:
        return TensorNet2Config(num_layers=self.layers, num_head_layers=self.head_layers)


MANY_EDGES = ((launch_sizes, "MANY_EDGE_ROWS", 1),)
PIECES = ((kernels, "MOST_ROWS", 0), (kernels, "PIECE", 4096))
CASES = {
    "few": Case(SMALL),
    "some": Case("chignolin"),
    "many": Case("water200"),
    "tiles": Case("water200", constants=((kernels, "TILE_ATOMS", 1),)),
    "charged-few": Case(SMALL, charged=True),
    "charged-layers": Case(SMALL, charged=True, layers=2, head_layers=1),
    "charged-launch": Case(SMALL, charged=True, layers=2, head_layers=1, constants=((few_atoms, "MOST_CHARGED", 60),)),
    "charged-rows": Case(SMALL, charged=True, coulomb=None),
    "charged-box": Case(BOX, charged=True),
    "charged-ewald": Case(BOX, charged=True, coulomb="ewald"),
    "charged-mesh": Case(BOX, charged=True, coulomb="pme"),
    "charged-two-maps": Case(BOX, charged=True, constants=MANY_EDGES, hopper=False),
    "charged-pieces": Case(BOX, charged=True, constants=(*MANY_EDGES, *PIECES), hopper=False),
    "charged-maps": Case(BOX, charged=True, constants=MANY_EDGES),
}
DYNAMICS = "dynamics"  # also a case: steps of few atoms inside one launch


def potential_of(case: Case) -> Potential:
    """On the GPU, with random weights."""
    torch.manual_seed(0)
    config = case.network() if case.charged else TensorNetConfig()
    priors = [CoulombConfig(periodic=case.coulomb)] if case.charged and case.coulomb else []
    return Potential(config, priors).requires_grad_(False).cuda()


def run(name: str, case: Case) -> None:
    """Runs two evaluations without a graph: the first builds the list, the second reuses it."""
    places: list[tuple[ModuleType, str, Any]] = list(case.constants)
    if not case.hopper:
        places.append((machine, "HOPPER", None))
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
