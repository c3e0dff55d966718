"""Compiling the exact network of a potential with AOTInductor into a .pt2 file, checked before it is written."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchmdx.checkpoints.export.program import INPUTS, exported_program, require_exportable
from torchmdx.evaluation.derivatives import evaluate
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.neighbors.brute_force import brute_force
from torchmdx.runtime.files import naming_writes
from torchmdx.runtime.isolation import isolated
from torchmdx.step.results import StepError
from torchmdx.structures.system import Batch, System

ENDING = ".pt2"
LIBRARY = "libstdc++.so"
# Largest error of forces and virial that is allowed, relative to the largest force or entry, by dtype of the network.
TOLERANCES = {torch.float32: 1e-4, torch.float64: 1e-9}
SPACING = 1.3  # Å between atoms of the structures that are compared


@dataclass(frozen=True)
class Exported:
    """A .pt2 file, and its largest relative errors of forces and virial in the structures that were compared."""

    path: Path
    error: float
    num_bytes: int


@isolated
def export(potential: Potential | Ensemble, path: str | Path) -> Exported:
    """Compiles energies, forces and virial of the exact model for the potential's device, and writes them to `path`.

    The compiled program is loaded and compared with `evaluate` for molecules and crystals of several sizes before the
    file is written.

    Raises:
        ValueError: For a potential that cannot be exported or another ending than .pt2.
        FileNotFoundError: Without a C++ compiler and its shared library.
        StepError: If the program and the exact model differ.
    """
    path = Path(path)
    if path.suffix != ENDING:
        raise ValueError(f"the file of an exported potential must end in {ENDING}, got {str(path)!r}")
    exact = require_exportable(potential)
    _require_compiler()
    if not path.parent.is_dir():
        raise FileNotFoundError(f"no folder {str(path.parent)!r} for {str(path)!r}")
    samples = sample_systems(exact)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own parts
        program = exported_program(exact, inputs_of(samples[0], exact))
        made = torch._inductor.aoti_compile_and_package(
            program,
            package_path=str(Path(folder) / "potential.pt2"),
            inductor_configs=compile_options(exact),
        )
        error = largest_error(torch._inductor.aoti_load_package(made), exact, samples)
        with naming_writes(path):
            partial = path.with_name(f".{path.name}.{os.getpid()}.part")
            try:
                shutil.copyfile(made, partial)
                os.replace(partial, path)
            finally:
                partial.unlink(missing_ok=True)
    return Exported(path, error, path.stat().st_size)


def compile_options(potential: Potential) -> dict[str, Any]:
    """Options of the compiler. The code around the kernels, most of the text, is compiled without optimization.

    That makes exporting faster, and results as fast.
    """
    options: dict[str, Any] = {"aot_inductor.metadata": metadata(potential)}
    if hasattr(torch._inductor.config.aot_inductor, "compile_wrapper_opt_level"):  # not in early versions
        options["aot_inductor.compile_wrapper_opt_level"] = "O0"
    return options


def metadata(potential: Potential) -> dict[str, str]:
    """What a program that uses the file has to know, as text: cutoff (Å), dtype, elements, inputs."""
    elements = potential.card.elements
    known = range(1, potential.max_z + 1) if elements is None else elements
    return {
        "cutoff": repr(float(potential.cutoff)),
        "dtype": str(potential.dtype).removeprefix("torch."),
        "atomic_numbers": " ".join(map(str, known)),
        "inputs": " ".join(INPUTS),
        "name": potential.card.title,
    }


def inputs_of(system: System, potential: Potential) -> dict[str, Tensor]:
    """The inputs of the program for a structure, with all edges within the potential's cutoff."""
    batch = Batch.of(system)
    edges = brute_force(batch, potential.cutoff).trimmed()
    found = dict(
        positions=batch.positions,
        atomic_numbers=batch.atomic_numbers,
        cell=batch.cell[0],
        source=edges.source.long(),
        target=edges.target.long(),
        shifts=edges.shifts.long(),
        charge=batch.charge[0],
    )
    return {name: value.to(potential.device) for name, value in found.items()}


def largest_error(program: Any, potential: Potential, samples: list[System]) -> float:
    """The largest error of the samples, relative to the largest entry of a result. Raises StepError if it is large."""
    worst = 0.0
    for system in samples:
        energies, forces, virial = program(*inputs_of(system, potential).values())
        wanted = evaluate(potential, system, stress=bool(system.pbc.all()))
        pairs = [(energies, wanted.energies), (forces, wanted.forces)]
        if wanted.stress is not None:
            volume = torch.linalg.det(system.cell).abs().to(potential.device)
            pairs.append((virial, -wanted.stress[0] * volume))
        for found, exact in pairs:
            assert exact is not None
            scale = exact.abs().max().clamp(min=1e-3)
            error = float(((found - exact).abs().max() / scale).detach())
            worst = max(worst, error) if error == error else float("nan")
            if not error <= TOLERANCES[potential.dtype]:
                raise StepError(
                    f"the compiled program differs from the exact model by {error:.1e} for {system.num_atoms} atoms, "
                    f"more than {TOLERANCES[potential.dtype]:.0e}"
                )
    return worst


def sample_systems(potential: Potential) -> list[System]:
    """Molecules and crystals of several sizes, of elements of the potential, with cells below and above the cutoff."""
    generator = torch.Generator().manual_seed(1)
    known = potential.card.elements or tuple(range(1, min(potential.max_z, 9) + 1))
    found = []
    for sides, periodic in (((3, 2, 2), False), ((2, 2, 1), True), ((2, 1, 1), False), ((5, 5, 4), True)):
        grid = torch.cartesian_prod(*(torch.arange(side, device="cpu") for side in sides)).double().reshape(-1, 3)
        places = (grid + 0.1 * torch.rand(grid.shape, generator=generator, dtype=torch.float64, device="cpu")) * SPACING
        numbers = torch.tensor(known, device="cpu")[
            torch.randint(len(known), (len(grid),), device="cpu", generator=generator)
        ]
        cell = torch.diag(torch.tensor(sides, dtype=torch.float64, device="cpu")) * SPACING
        cell[1, 0] = cell[2, 1] = 0.3 if periodic else 0.0
        found.append(System.create(places, numbers, cell, pbc=periodic))
    return found


def _require_compiler() -> None:
    """Raises FileNotFoundError without a C++ compiler that links with the shared C++ library.

    Without it a program has a copy of its own, whose locales do not agree with those that Python has loaded: loading
    the program ends the process.
    """
    first = os.environ.get("CXX", "g++")
    compiler = next(filter(shutil.which, (first, "clang++")), None)
    if compiler is None:
        raise FileNotFoundError(f"exporting needs a C++ compiler, found no {first} and no clang++")
    if sys.platform != "linux":
        return
    command = [compiler, f"-print-file-name={LIBRARY}"]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    if not Path(found).is_absolute():
        raise FileNotFoundError(
            f"exporting needs a C++ compiler with the shared library {LIBRARY}, which packages as libstdc++-13-dev or "
            f"libstdc++-devel install; {compiler} found none"
        )
