"""Times energy, forces and stress of a matgl potential in crystals: torchmdx captured, and matgl itself, in one run.

    python -m benchmarks.matgl_steps FOLDER [--peer eager,compile] [--materials Si,Cu]

FOLDER: of a potential that matgl saved, such as TensorNet-PES-MatPES-PBE-2025.2. float32. ms: of torchmdx, the median
of a replay, neighbour search and copies included; of matgl, the median of its Potential on a graph that is already on
the GPU, without the neighbour search. wall_ms: from ASE's Atoms to NumPy results by each package's calculator.
force_error: relative, against torchmdx's exact model in float64. memory_GB: the most that torch held. J_per_ns, watts:
of matgl, for steps of 1 fs (benchmarks/energy.py). speedup: by ms, over the faster mode of matgl. Results go to
matgl.json (elements) and matgl_compounds.json.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ase
import numpy as np
import torch
from ase.build import bulk
from ase.spacegroup import crystal

import torchmdx
from benchmarks import energy, peer_model, record
from torchmdx import Batch, Potential, System, evaluate
from torchmdx.step.captured_step import CapturedStep

MATERIALS = {
    "Si": (lambda: bulk("Si", cubic=True), (1, 3, 5, 8, 16)),
    "Cu": (lambda: bulk("Cu", cubic=True), (1, 2, 4, 6, 10, 20)),
    "NaCl": (lambda: bulk("NaCl", "rocksalt", a=5.64, cubic=True), (1, 3, 5, 8, 16)),
    "SrTiO3": (
        lambda: crystal(
            ["Sr", "Ti", "O"], [(0.5, 0.5, 0.5), (0, 0, 0), (0.5, 0, 0)], spacegroup=221, cellpar=[3.905] * 3 + [90] * 3
        ),
        (1, 3, 6, 9, 18),
    ),
}
EXACT_ATOMS = 1500
LEAST_FORCE = 1e-3  # eV/Å; below, forces vanish by symmetry
MODES = ("eager", "compile")


def structures(name: str) -> list[ase.Atoms]:
    """Supercells of a material with random displacements; of copper also the primitive cell, one atom."""
    make, sizes = MATERIALS[name]
    found = [make() * (n, n, n) for n in sizes]
    if name == "Cu":
        found.insert(0, bulk("Cu"))
    return [displaced(atoms) for atoms in found]


def displaced(atoms: ase.Atoms) -> ase.Atoms:
    """The crystal itself, with random displacements and a strain."""
    atoms.rattle(0.05, seed=1)
    atoms.set_cell(atoms.cell.array @ (np.eye(3) + 0.01 * np.diag([1, -1, 0.5])), scale_atoms=True)
    return atoms


def repeats(num_atoms: int) -> int:
    return 100 if num_atoms < 2000 else 30 if num_atoms < 10000 else 10


def wall(run: Callable[[], Any], count: int) -> float:
    run()
    times = []
    for _ in range(count):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def calculated(atoms: ase.Atoms, calculator: Any) -> Callable[[], Any]:
    """A function that evaluates all properties, as a step of molecular dynamics does."""

    def run() -> np.ndarray:
        calculator.calculate(atoms, ["energy", "forces", "stress"], ["positions"])
        return np.asarray(calculator.results["forces"])

    return run


def error_of(forces: Any, exact: np.ndarray | None) -> float | None:
    if exact is None or np.linalg.norm(exact) < LEAST_FORCE:
        return None
    return float(np.linalg.norm(np.asarray(forces) - exact) / np.linalg.norm(exact))


def started() -> None:
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def ours(model: Potential, atoms: ase.Atoms, exact: np.ndarray | None) -> dict[str, Any]:
    started()
    batch = Batch.of(System.from_ase(atoms))
    start = time.perf_counter()
    step = CapturedStep(model, batch, mode="graph", stress=True)
    result = step(batch.positions.numpy())
    seconds = time.perf_counter() - start
    count, report = repeats(len(atoms)), step.report()
    row = dict(
        by="torchmdx",
        mode=report.engine,
        ms=peer_model.milliseconds(step.policy.graphs["host"].replay, count, 5),
        setup_s=round(seconds, 2),
        nodes=report.nodes,
        force_error=error_of(result.forces, exact),
        memory_GB=round(torch.cuda.max_memory_allocated() / 2**30, 3),
    )
    del step
    row["wall_ms"] = wall(calculated(atoms.copy(), torchmdx.Calculator(model, device="cuda")), min(count, 50))
    return row


def read_as_released(loaded: Any, folder: Path) -> None:
    """Exchanges what matgl 4 exchanges in networks of version 1: the halves, of both atoms, of the pair embedding."""
    if json.loads((folder / "model.json").read_text())["kwargs"]["model"]["@model_version"] == 1:
        weight = loaded.model.tensor_embedding.emb2.weight.data
        weight.copy_(torch.cat(weight.chunk(2, 1)[::-1], 1))


def matgl_potential(folder: Path, device: str, **settings: Any) -> Any:
    """matgl's Potential of a folder, with stresses."""
    import matgl

    loaded = matgl.load_model(folder)
    read_as_released(loaded, folder)
    return type(loaded)(
        loaded.model,
        data_mean=loaded.data_mean,
        data_std=loaded.data_std,
        element_refs=None if loaded.element_refs is None else loaded.element_refs.property_offset,
        calc_stresses=True,
        **settings,
    ).to(device)


def theirs(folder: Path, atoms: ase.Atoms, mode: str, exact: np.ndarray | None) -> dict[str, Any]:
    from matgl.ext.ase import Atoms2Graph, PESCalculator

    started()
    start = time.perf_counter()
    potential = matgl_potential(folder, "cuda", **(dict(compile_model=True) if mode == "compile" else {}))
    model = potential.model
    graph, lattice, state = Atoms2Graph(model.element_types, model.cutoff).get_graph(atoms)
    graph, lattice = graph.to("cuda"), torch.as_tensor(lattice).float().to("cuda")

    def run() -> Any:
        return potential(graph, lattice, state)

    found = run()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    count = repeats(len(atoms))
    row = dict(
        by="matgl",
        mode=mode,
        warp=bool(getattr(model, "_use_warp", False)),
        ms=peer_model.milliseconds(run, count, 5),
        setup_s=round(seconds, 2),
        force_error=error_of(found[1].detach().cpu(), exact),
        **energy.per_ns(run),
        memory_GB=round(torch.cuda.max_memory_allocated() / 2**30, 3),
    )
    calculator = PESCalculator(potential=potential, stress_unit="eV/A3")
    row["wall_ms"] = wall(calculated(atoms.copy(), calculator), min(count, 10))
    return row


def exact_forces(model: Potential, atoms: ase.Atoms) -> np.ndarray | None:
    if len(atoms) > EXACT_ATOMS:
        return None
    forces = evaluate(copy.deepcopy(model).double(), Batch.of(System.from_ase(atoms)).to("cuda")).forces
    assert forces is not None
    return forces.cpu().numpy()


def measure(folder: Path, name: str, peers: list[str]) -> list[dict[str, Any]]:
    model, rows = torchmdx.load(folder, dtype=torch.float32, device="cuda"), []
    assert isinstance(model, Potential)
    for atoms in structures(name):
        head, exact = dict(material=name, atoms=len(atoms)), exact_forces(model, atoms)
        found = [head | ours(model, atoms, exact)]
        for mode in peers:
            try:
                found.append(head | theirs(folder, atoms, mode, exact))
            except Exception as error:  # out of memory, or a mode that the peer's version cannot run
                torch.cuda.empty_cache()
                found.append(head | dict(by="matgl", mode=mode, error=f"{type(error).__name__}: {str(error)[:120]}"))
        times = [row["ms"] for row in found[1:] if "ms" in row]
        found[0]["speedup"] = round(min(times) / found[0]["ms"], 1) if times else None
        for row in found:
            print(row, flush=True)
        rows += found
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--peer", default="", help=f"modes of matgl: of {', '.join(MODES)}")
    parser.add_argument("--materials", default=",".join(MATERIALS))
    options = parser.parse_args()
    peers = [mode for mode in options.peer.split(",") if mode]
    materials = options.materials.split(",")
    for file, kind in (("matgl", ("Si", "Cu")), ("matgl_compounds", ("NaCl", "SrTiO3"))):
        rows = [row for name in materials if name in kind for row in measure(options.folder, name, peers)]
        if rows:
            print(record.write(file, rows))


if __name__ == "__main__":
    main()
