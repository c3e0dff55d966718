"""Times one evaluation of released potentials, search included: torchmdx captured, and torchmd-net, in one run.

    python -m benchmarks.released aceff-1.1.ckpt aceff-2.0.ckpt [--peer eager,graph] [--structures peptide.xyz]

Arguments are files of potentials as `torchmdx.load` reads them; none is part of the project. Each evaluates toluene and
the structures of benchmarks/structures in vacuum, and the files of --structures, which ASE reads, periodic if they have
a cell. float32. ms: medians of CUDA events around a replay, search and copies included. force_error,
energy_error_per_atom_eV: against the exact model in float64. memory_GB: the most that torch held. speedup: over the
fastest mode of the peer. Results go to released.json.
"""

from __future__ import annotations

import argparse
import copy
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ase
import numpy as np
import torch
from ase.build import molecule
from ase.io import read

import torchmdx
from benchmarks import peer_model, record, step, systems
from torchmdx import Batch, Potential, System, evaluate
from torchmdx.step.captured_step import CapturedStep

NAMES = ("alanine_dipeptide", "chignolin", "dhfr")
MOST_NEIGHBORS = 64  # of the peer's neighbour lists


def toluene() -> ase.Atoms:
    """Benzene with one hydrogen replaced by a methyl group, whose bonds are at tetrahedral angles."""
    ring = molecule("C6H6")
    carbon, hydrogen = ring.positions[0], ring.positions[6]
    out = (hydrogen - carbon) / np.linalg.norm(hydrogen - carbon)
    side = np.cross(out, [0.0, 0.0, 1.0])
    methyl = carbon + 1.51 * out
    del ring[6]
    for angle in (90, 210, 330):
        turned = np.cos(np.radians(angle)) * side + np.sin(np.radians(angle)) * np.array([0.0, 0.0, 1.0])
        ring += ase.Atom("H", methyl + 1.09 * (out / 3 + np.sqrt(8) / 3 * turned))
    return ring + ase.Atoms("C", [methyl])


def structures(names: list[str], files: list[Path]) -> Iterator[tuple[str, ase.Atoms]]:
    for path in files:
        yield path.stem, read(path, index=0)
    for name in names:
        numbers, positions, _ = systems.load(name) if name != "toluene" else (None, None, None)
        yield name, toluene() if numbers is None else ase.Atoms(numbers, positions)


def ours(potential: Potential, batch: Batch) -> tuple[dict[str, Any], torch.Tensor]:
    """The row of torchmdx, and the exact forces."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    captured = CapturedStep(potential, batch, mode="graph")
    result = captured(batch.positions.numpy())
    ms = peer_model.milliseconds(captured.policy.graphs["host"].replay, step.repeats(batch.num_atoms), 5)
    report, most = captured.report(), torch.cuda.max_memory_allocated()
    exact = evaluate(copy.deepcopy(potential).double(), batch.to("cuda"))
    assert exact.forces is not None
    error = (torch.from_numpy(result.forces).cuda() - exact.forces).norm() / exact.forces.norm()
    row = {
        "by": "torchmdx",
        "mode": captured.mode,
        "engine": report.engine,
        "ms": ms,
        "nodes": report.nodes,
        "force_error": float(error),
        "energy_error_per_atom_eV": float(abs(exact.energy.cpu().numpy() - result.energy).max()) / batch.num_atoms,
        "memory_GB": round(most / 2**30, 3),
        "step_memory_GB": round(report.memory_bytes / 2**30, 3),
    }
    return row, exact.forces


def theirs(path: Path, batch: Batch, mode: str, exact: torch.Tensor) -> dict[str, Any]:
    """The row of torchmd-net, which loads the same file."""
    from torchmdnet.models.model import load_model

    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    batch = batch.to("cuda")
    box = batch.cell[0].float() if batch.pbc.any() else None
    options = dict(max_num_neighbors=MOST_NEIGHBORS, box_vecs=None if box is None else box.cpu().tolist())
    peer = load_model(str(path), derivative=mode != "compile", static_shapes=mode != "eager", **options).eval()
    run, forces = peer_model.prepare(mode, peer, batch.atomic_numbers, batch.positions.float(), batch.system_index, box)
    run()
    torch.cuda.synchronize()
    return {
        "by": "torchmd-net",
        "mode": mode,
        "ms": peer_model.milliseconds(run, 50, 3),
        "force_error": float((forces().double() - exact).norm() / exact.norm()),
        "memory_GB": round(torch.cuda.max_memory_allocated() / 2**30, 3),
    }


def compared(path: Path, batch: Batch, modes: list[str]) -> list[dict[str, Any]]:
    """Rows of torchmdx and of the peer in these modes; an error is a row too."""
    found: list[dict[str, Any]] = []
    row, exact = ours(torchmdx.load(path).requires_grad_(False).cuda(), batch)
    found.append(row)
    for mode in modes:
        try:
            found.append(theirs(path, batch, mode, exact))
        except Exception as error:
            found.append({"by": "torchmd-net", "mode": mode, "error": f"{type(error).__name__}: {error}"[:200]})
        gc.collect()
        torch._dynamo.reset()
    times = [other["ms"] for other in found[1:] if "ms" in other]
    if times:
        row["speedup"] = round(min(times) / row["ms"], 2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("potentials", nargs="+", type=Path, help="files of potentials")
    parser.add_argument("--structures", nargs="*", type=Path, default=[], help="more structures")
    parser.add_argument("--names", default=",".join(("toluene", *NAMES)), help="of structures in vacuum")
    parser.add_argument("--peer", default="", help="modes of torchmd-net to time as well: eager,graph,compile")
    options = parser.parse_args()
    rows = []
    for path in options.potentials:
        for name, atoms in structures([n for n in options.names.split(",") if n], options.structures):
            batch = Batch.from_systems([System.from_ase(atoms)])
            for row in compared(path, batch, [mode for mode in options.peer.split(",") if mode]):
                rows.append({"potential": path.stem, "system": name, "atoms": batch.num_atoms, **row})
                print(rows[-1], flush=True)
            record.write("released", rows)


if __name__ == "__main__":
    main()
