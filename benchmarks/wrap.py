"""Times a wrapped MACE against MACE's own calculator, on one GPU, in one run, with the same random weights.

    python -m benchmarks.wrap [--sizes 1,9,50,200,1000] [--irreps 128x0e]

Structures are clusters of a protein with these numbers of atoms. ms: from NumPy positions to NumPy forces through ASE's
calculator interface, float32. force_error: of each side, relative to torchmdx in float64. Needs mace-torch.
"""

from __future__ import annotations

import argparse
import copy
import re
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase.calculators.calculator import Calculator as AseCalculator

from benchmarks import record, systems
from torchmdx import Calculator, Potential

warnings.filterwarnings("ignore")
torch.serialization.add_safe_globals([slice])  # e3nn's constants
from e3nn import o3  # noqa: E402
from mace import modules  # noqa: E402
from mace.calculators import MACECalculator  # noqa: E402

PAGE = Path(__file__).parents[1] / "docs" / "wrap_a_model.md"
ELEMENTS = [1, 6, 7, 8, 16]


def random_mace(irreps: str) -> torch.nn.Module:
    """The sizes of MACE-OFF23's models."""
    torch.manual_seed(0)
    interaction = modules.interaction_classes["RealAgnosticResidualInteractionBlock"]
    return modules.ScaleShiftMACE(
        r_max=5.0, num_bessel=8, num_polynomial_cutoff=5, max_ell=3, interaction_cls=interaction,
        interaction_cls_first=interaction, num_interactions=2, num_elements=len(ELEMENTS),
        hidden_irreps=o3.Irreps(irreps), MLP_irreps=o3.Irreps("16x0e"), gate=torch.nn.functional.silu,
        atomic_energies=np.zeros(len(ELEMENTS)), avg_num_neighbors=30.0, atomic_numbers=ELEMENTS, correlation=3,
        radial_type="bessel", atomic_inter_scale=5.0, atomic_inter_shift=0.0,
    ).double()  # fmt: skip


def wrapped(mace: torch.nn.Module) -> Potential:
    """By the code of docs/wrap_a_model.md."""
    (block,) = re.findall(
        r"```python\n(import torch\nimport torchmdx\n\n\nclass Mace.*?)```", PAGE.read_text(), re.DOTALL
    )
    names: dict[str, Any] = {}
    exec(block, names)
    made: Potential = names["wrap_mace"](mace)
    return made


def cluster(size: int) -> Atoms:
    """Atoms of a protein that are nearest to its middle."""
    numbers, positions, _ = systems.load("dhfr")
    near = np.argsort(np.linalg.norm(positions - positions.mean(0), axis=1))[:size]
    return Atoms(numbers[near], positions[near])


def milliseconds(atoms: Atoms, calculator: AseCalculator, repeats: int = 30) -> tuple[float, np.ndarray]:
    """Median time of forces for changing positions, and the forces at the first."""
    start, times = atoms.positions.copy(), []
    shift = 1e-4 * np.random.default_rng(0).normal(size=start.shape)
    for k in range(repeats + 5):
        atoms.positions = start + (k % 2) * shift
        before = time.perf_counter()
        calculator.calculate(atoms, ["energy", "forces"], ["positions"])
        if k >= 5:
            times.append(time.perf_counter() - before)
    atoms.positions = start
    calculator.calculate(atoms, ["energy", "forces"], ["positions"])
    return statistics.median(times) * 1e3, np.array(calculator.results["forces"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1,9,22,50,100,200,500,1000,2489")
    parser.add_argument("--irreps", default="128x0e")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    mace, rows = random_mace(options.irreps), []
    potential = wrapped(copy.deepcopy(mace))
    ours = Calculator(potential, device=options.device)
    theirs = MACECalculator(models=[copy.deepcopy(mace).float()], device=options.device, default_dtype="float32")
    exact = Calculator(potential, dtype="float64", device=options.device)
    for size in map(int, options.sizes.split(",")):
        atoms = cluster(size)
        found = {}
        for by, calculator in (("torchmdx", ours), ("mace", theirs)):
            try:
                found[by] = milliseconds(atoms, calculator)
            except Exception as error:
                rows.append({"atoms": size, "by": by, "error": f"{type(error).__name__}: {error}"[:300]})
        atoms.calc = exact
        wanted = atoms.get_forces() if size <= 1000 else None
        for by, (ms, forces) in found.items():
            row = {"irreps": options.irreps, "atoms": size, "by": by, "ms": round(ms, 3)}
            if wanted is not None and (norm := np.linalg.norm(wanted)) > 0:
                row["force_error"] = float(np.linalg.norm(forces - wanted) / norm)
            if by == "torchmdx" and "mace" in found:
                row |= {"speedup": round(found["mace"][0] / ms, 2), "why": str(getattr(ours.report(), "why", ""))}
            rows.append(row)
            print(row, flush=True)
    print(record.write("wrap", rows))


if __name__ == "__main__":
    main()
