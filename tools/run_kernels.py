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
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.systems import load
from torchmdx import Potential, System, TensorNet2Config, TensorNetConfig
from torchmdx.engines.fused import tensornet2
from torchmdx.models.priors.coulomb import CoulombConfig
from torchmdx.step.captured_step import CapturedStep

SMALL, BOX = "alanine_dipeptide", "water150"
# Per case: whether the model is a TensorNet2 with Coulomb energy, the structure, and constants of
# engines/fused/tensornet2.py with which few edges use the kernels for many.
CASES = {
    "few": (False, SMALL, {}),
    "some": (False, "chignolin", {}),
    "many": (False, "water200", {}),
    "charged-few": (True, SMALL, {}),
    "charged-box": (True, BOX, {}),
    "charged-two-maps": (True, BOX, {"MANY_EDGE_ROWS": 1}),
    "charged-pieces": (True, BOX, {"MANY_EDGE_ROWS": 1, "MOST_ROWS": 0, "PIECE": 4096}),
}


def run(case: str) -> None:
    """Runs two evaluations without a graph: the first builds the list, the second reuses it."""
    charged, name, constants = CASES[case]
    before = {key: getattr(tensornet2, key) for key in constants}
    for key, value in constants.items():
        setattr(tensornet2, key, value)
    torch.manual_seed(0)
    config = TensorNet2Config(num_layers=1) if charged else TensorNetConfig()
    potential = Potential(config, [CoulombConfig()] if charged else []).requires_grad_(False).cuda()
    numbers, positions, cell = load(name)
    system = System.create(positions, numbers, cell=cell, pbc=cell is not None, device="cuda")
    step = CapturedStep(potential, system, mode="eager", stress=cell is not None, skin=0.3)
    for _ in range(2):
        forces = step(positions).forces
    print(f"{case}: {step.report().engine}, largest force {abs(forces).max():.3g} eV/Å", flush=True)
    for key, value in before.items():
        setattr(tensornet2, key, value)


def main() -> None:
    """Runs the named cases, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}; default: all")
    cases = parser.parse_args().cases or list(CASES)
    if unknown := set(cases) - set(CASES):
        parser.error(f"cases must be of {', '.join(CASES)}, got {', '.join(sorted(unknown))}")
    for case in cases:
        run(case)


if __name__ == "__main__":
    main()
