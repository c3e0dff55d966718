"""Times an evaluation of released potentials, and the program that each was released with, in one run.

    python -m benchmarks.released [FOLDER] [--peer [MODES]] [--rows aceff-2.0/dhfr,...] [--seconds 240] [--resume]

FOLDER (or $RELEASED_POTENTIALS) has the files and folders of POTENTIALS, also in folders within; organic-1 comes with
torchmdx. float32: energy and forces, for crystals also stress. Each row, a potential and a system, runs in a process of
its own: they set up side by side and are timed one after the other (benchmarks/in_turn.py), for at most --seconds each;
what it measured by then is kept. released.json is written after each row. Rows of earlier runs, and of modes of the
peer on the same device, stay in the record until they are measured again, with their commit and device; --resume skips
those of this commit and device. Systems whose name ends in a distance have Coulomb energies with a reaction field
beyond it; torchmd-net has no others of a box.

--peer: torchmd-net (AceFF) in the modes eager, graph and compile, or matgl (crystals) in eager and compile, or in those
that are named, if it can be imported. A mode that fails is a row with an error.

ms: median of replays, search and copies included (of matgl: without the search). ns_day: at 1 fs. wall_ms: from NumPy
positions to NumPy forces. force_error, stress_error: relative, against the exact model in float64. step_memory_GB:
buffers and graph of a step. memory_GB: the most that torch held. J_per_ns, watts: of the whole GPU, for a nanosecond of
steps of 1 fs (benchmarks/energy.py). speedup: over the peer's fastest mode; saving: of energy, likewise.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gc
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import ase
import torch

import torchmdx
from benchmarks import energy, in_turn, matgl_steps, peer_model, record, step
from benchmarks.released_systems import CRYSTALS, CUTOFFS, POTENTIALS, find, kind, structure
from torchmdx import Batch, Potential, System, evaluate
from torchmdx.step.captured_step import CapturedStep

Row = dict[str, Any]
SYSTEM_KEYS = ("potential", "system")
MOST_NEIGHBORS = 64  # of torchmd-net's neighbour lists
GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"


@dataclass(frozen=True)
class Case:
    """A potential, the file or folder that it is in, a system, and the modes to measure of its peer."""

    potential: str
    path: str | Path
    system: str
    modes: Sequence[str] = ()


def names_of(case: Case) -> set[str]:
    """What --rows calls it."""
    return {case.potential, f"{case.potential}/{case.system}"}


def peer_of(system: str) -> tuple[str, tuple[str, ...]]:
    """The program that a potential for this system was released with, and its modes."""
    return ("matgl", matgl_steps.MODES) if system in CRYSTALS else ("torchmd-net", peer_model.MODES)


def milliseconds(run: Callable[[], Any], count: int) -> float:
    """Median time of a run: by CUDA events, or by the clock on a CPU."""
    return peer_model.milliseconds(run, count, 5) if GPU else matgl_steps.wall(run, min(count, 20))


def started() -> None:
    gc.collect()
    if GPU:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_memory() -> float | None:
    return round(torch.cuda.max_memory_allocated() / 2**30, 3) if GPU else None


def error_of(found: Any, exact: torch.Tensor) -> float:
    """Relative, of forces or stress."""
    got = torch.as_tensor(found).to(exact.device, torch.float64).reshape(exact.shape)
    return float((got - exact).norm() / exact.norm())


def ours(potential: Potential, batch: Batch, stress: bool, exact: Any) -> Row:
    """The row of torchmdx."""
    started()
    begin = time.perf_counter()
    captured = CapturedStep(potential, batch, mode="graph" if GPU else "eager", stress=stress)
    positions = batch.positions.numpy()
    result = captured(positions)
    setup, most = time.perf_counter() - begin, peak_memory()
    in_turn.my_turn()
    run = captured.policy.graphs["host"].replay if GPU else lambda: captured(positions)
    ms, report = round(milliseconds(run, step.repeats(batch.num_atoms)), 4), captured.report()
    return {
        "by": "torchmdx",
        "mode": captured.mode,
        "version": torchmdx.__version__,
        "engine": report.engine,
        "ms": ms,
        "ns_day": round(86.4 / ms, 1),
        "wall_ms": round(matgl_steps.wall(lambda: captured(positions), min(step.repeats(batch.num_atoms), 50)), 4),
        "setup_s": round(setup, 2),
        "nodes": report.nodes,
        "force_error": error_of(result.forces, exact.forces),
        **({"stress_error": error_of(result.stress, exact.stress)} if stress else {}),
        "energy_error_per_atom_eV": float(abs(exact.energy.cpu().numpy() - result.energy).max()) / batch.num_atoms,
        **energy.per_ns(run),
        "memory_GB": most,
        "step_memory_GB": round(report.memory_bytes / 2**30, 4),
    }


def torchmd_net(path: Path, batch: Batch, mode: str, exact: torch.Tensor, cutoff: float | None) -> Row:
    """The row of torchmd-net, which loads the same file."""
    from torchmdnet.models.model import load_model

    started()
    batch = batch.to("cuda")
    box = batch.cell[0].float() if batch.pbc.any() else None
    options: Row = dict(max_num_neighbors=MOST_NEIGHBORS, box_vecs=None if box is None else box.cpu().tolist())
    options |= {} if cutoff is None else {"coulomb_cutoff": cutoff}
    peer = load_model(str(path), derivative=mode != "compile", static_shapes=mode != "eager", **options).eval()
    run, forces = peer_model.prepare(mode, peer, batch.atomic_numbers, batch.positions.float(), batch.system_index, box)
    run()
    torch.cuda.synchronize()
    return {
        "by": "torchmd-net",
        "mode": mode,
        "version": version_of("torchmd-net"),
        "ms": peer_model.milliseconds(run, 50, 3),
        "force_error": error_of(forces(), exact),
        **energy.per_ns(run),
        "memory_GB": peak_memory(),
    }


def matgl(path: Path, atoms: ase.Atoms, mode: str, exact: torch.Tensor) -> Row:
    """The row of matgl, which loads the same folder."""
    return {**matgl_steps.theirs(path, atoms, mode, exact.cpu().numpy()), "version": version_of("matgl")}


def version_of(package: str) -> str:
    """Of an installed package; "unknown" of one that was unpacked without its metadata."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def rows_of(path: str | Path, name: str, modes: Sequence[str]) -> Iterator[Row]:
    """The rows of a system: of torchmdx, then of each of these modes of the peer."""
    atoms, stress, cutoff = structure(name), name in CRYSTALS, CUTOFFS.get(name)
    potential = torchmdx.load(path, dtype=torch.float32, device=DEVICE, coulomb_cutoff=cutoff)
    assert isinstance(potential, Potential)
    batch = Batch.from_systems([System.from_ase(atoms)])
    exact = evaluate(copy.deepcopy(potential).double(), batch.to(DEVICE), stress=stress)
    assert exact.forces is not None
    yield {**ours(potential.requires_grad_(False), batch, stress, exact), "atoms": batch.num_atoms}
    del potential
    program, _ = peer_of(name)
    for mode in modes:
        try:
            row = (
                matgl(Path(path), atoms, mode, exact.forces)
                if stress
                else torchmd_net(Path(path), batch, mode, exact.forces, cutoff)
            )
        except Exception as error:
            row = {"by": program, "mode": mode, "error": f"{type(error).__name__}: {error}"[:200]}
        yield {**row, "atoms": batch.num_atoms}
        torch._dynamo.reset()


def child(path: str, system: str, modes: Sequence[str]) -> None:
    """Measures one system, in a process that measure() starts; prints each row when it has it."""
    if modes:  # imported now, because other processes wait while this one measures; errors become rows later
        with contextlib.suppress(Exception):
            importlib.import_module("matgl" if system in CRYSTALS else "torchmdnet.models.model")
    for row in rows_of(path if path == "organic-1" else Path(path), system, modes):
        print(json.dumps(row), flush=True)


def measure(cases: Sequence[Case], seconds: float, at_once: int | None) -> Iterator[list[Row]]:
    """The rows of each case, from a process of its own."""
    command = [sys.executable, "-m", "benchmarks.released", "--child"]
    commands = [[*command, json.dumps([str(case.path), case.system, case.modes])] for case in cases]
    for case, ended in zip(cases, in_turn.run(commands, seconds, at_once), strict=True):
        rows = rows_from(case, ended)
        for row in rows:
            print(json.dumps(row), flush=True)
        yield rows


def rows_from(case: Case, ended: in_turn.Ended) -> list[Row]:
    """What a process printed, with a row for the error that it ended with."""
    head = {"potential": case.potential, "system": case.system, "kind": kind(case.system)}
    rows: list[Row] = [{**head, **row} for row in in_turn.rows(ended)]
    if ended.why:
        print(f"{case.potential}, {case.system}: {ended.why}, after {len(rows)} rows", flush=True)
        print(ended.errors[-2000:], flush=True)
        modes = [("torchmdx", "graph"), *((peer_of(case.system)[0], mode) for mode in case.modes)]
        for by, mode in modes[len(rows) :][:1]:
            rows.append({**head, "by": by, "mode": mode, "atoms": len(structure(case.system)), "error": ended.why})
    return rows


def beside(rows: list[Row]) -> list[Row]:
    """With the recorded rows of the peer's modes that this run did not measure, and factors to its fastest mode.

    Only rows of the same device are kept; they name the commit that they were measured with. Without factors if a mode
    did not end, which might be the fastest.
    """
    found, here = record.read("released"), record.environment()
    measured = {(row["by"], row["mode"]) for row in rows}
    for row in found["rows"]:
        commit, device = (row.get(key, found["environment"].get(key)) for key in ("commit", "device"))
        other = row["by"] != "torchmdx" and (row["by"], row["mode"]) not in measured and device == here["device"]
        if other and all(row[key] == rows[0][key] for key in SYSTEM_KEYS):
            rows.append({**row, **({"commit": commit} if commit != here["commit"] else {})})
    unknown = any(row.get("error", "").startswith(in_turn.LATE) for row in rows[1:])
    for name, key in (("speedup", "ms"), ("saving", "J_per_ns")) if not unknown else ():
        peers = [row[key] for row in rows[1:] if key in row]
        if peers and key in rows[0]:
            rows[0][name] = round(min(peers) / rows[0][key], 2)
    return rows


def modes_of(system: str, asked: str | None) -> list[str]:
    """The modes to measure of the program to compare with; none, with a message, if it cannot be imported."""
    if asked is None:
        return []
    name = "matgl" if system in CRYSTALS else "torchmdnet"
    if not GPU or importlib.util.find_spec(name) is None:
        print(f"{system}: without {name}, which {'cannot be imported' if GPU else 'needs a GPU'}", flush=True)
        return []
    return [mode for mode in peer_of(system)[1] if not asked or mode in asked.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=os.environ.get("RELEASED_POTENTIALS"))
    parser.add_argument("--peer", nargs="?", const="", metavar="MODES", help="also time torchmd-net or matgl")
    parser.add_argument("--rows", default="", help="only these, POTENTIAL/SYSTEM or POTENTIAL, in this order")
    parser.add_argument("--seconds", type=float, default=240, help="limit for each row (default: 240)")
    parser.add_argument("--at-once", type=int, help="processes that set up side by side (default: half the processors)")
    parser.add_argument("--resume", action="store_true", help="skip rows of this commit and device")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(*json.loads(options.child))
    chosen = [name for name in options.rows.split(",") if name]
    here = {(row["potential"], row["system"]) for row in record.current("released")} if options.resume else set()
    cases: list[Case] = []
    for potential, names in POTENTIALS.items():
        path = find(options.folder and Path(options.folder), potential)
        if path is None:
            print(f"{potential}: not in {options.folder}", flush=True)
            continue
        for system in names:
            case = Case(potential, path, system)
            if (not chosen or names_of(case) & set(chosen)) and (potential, system) not in here:
                modes = [] if potential == "organic-1" else modes_of(system, options.peer)
                cases.append(replace(case, modes=modes))
    if chosen:
        cases.sort(key=lambda case: min(k for k, name in enumerate(chosen) if name in names_of(case)))
    for rows in measure(cases, options.seconds, options.at_once):
        record.update("released", beside(rows), SYSTEM_KEYS)
    return None


if __name__ == "__main__":
    main()
