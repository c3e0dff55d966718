"""LAMMPS with one process and with two, each on a GPU of its own if there are two: ms a step, replays, memory, forces.

    python -m benchmarks.lammps_steps [--atoms 24000 98304 999000 2400000] [--ranks 1 2] [--steps 40] [--threads 8]

Each case runs in processes of its own. A case that runs out of memory is recorded with its error. speedup: over one
process. work_ratio, of processes that share a GPU: the time of one process divided by a process's share of the time of
all, the speedup on GPUs of their own if nothing is lost to communication. threads: of each process, for LAMMPS's own
work and copies (-suffix omp -package omp).
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import record, systems

WARM_UP = 10
COMMANDS = """
pair_style torchmdx organic-1 precision {precision}
pair_coeff * * H O
neighbor {skin} bin
mass 1 1.008
mass 2 15.999
velocity all create 300 1 loop geom
fix 1 all nve
timestep 0.00025
thermo 1000
"""


def worker(options: argparse.Namespace) -> None:
    """One process of a case."""
    from torchmdx.lammps.run import open_lammps
    from torchmdx.step.graph import Graph

    replays = 0
    replay = Graph.replay

    def counted(self: Graph) -> None:
        nonlocal replays
        replays += 1
        replay(self)

    Graph.replay = counted  # type: ignore[method-assign]
    numbers, positions, cell = systems.water(options.worker // 3)
    length = float(cell[0, 0])
    log = f"{options.out}.log"
    threads = ["-suffix", "omp", "-package", "omp", str(options.threads)] if options.threads > 1 else []
    lmp = open_lammps(["-screen", "none", "-log", log, *threads])
    for line in ("units metal", "atom_style atomic", "atom_modify map array", "boundary p p p"):
        lmp.command(line)
    lmp.command(f"region box block 0 {length!r} 0 {length!r} 0 {length!r}")
    lmp.command("create_box 2 box")
    types, places = np.where(numbers == 1, 1, 2), np.mod(positions, length)
    lmp.create_atoms(len(types), list(range(1, len(types) + 1)), types.tolist(), places.ravel().tolist())
    lmp.commands_string(COMMANDS.format(precision=options.precision, skin=options.skin))
    lmp.command("run 0")
    forces = np.array(lmp.gather_atoms("f", 1, 3)).reshape(-1, 3)
    lmp.command(f"run {WARM_UP}")
    step = _domain_step()
    before, evaluated = replays, step.num_evaluations
    lmp.command(f"run {options.steps}")
    rank = lmp.extract_setting("world_rank")
    row = _measured(lmp, step) | {"replays": replays - before, "evaluations": step.num_evaluations - evaluated}
    Path(f"{options.out}.{rank}.json").write_text(json.dumps(row))
    if rank == 0:
        np.save(f"{options.out}.npy", forces)
    lmp.close()
    lmp.finalize()


def _domain_step() -> Any:
    from torchmdx.lammps import session

    (only,) = session._sessions.values()
    return only.step


def _measured(lmp: Any, step: Any) -> dict[str, Any]:
    report = step.step.report()
    memory = torch.cuda.max_memory_allocated() / 1e9 if torch.cuda.is_available() else 0.0
    return {
        "owned": step.num_owned,
        "evaluated": step.num_atoms,
        "capacity": step.capacity,
        "mode": report.mode,
        "why": report.why,
        "growths": step.num_growths,
        "recoveries": step.step.num_recoveries,
        "force_error": step.step.error,
        "gigabytes": round(memory, 2),
    }


def run_case(options: argparse.Namespace, atoms: int, ranks: int, folder: Path) -> tuple[dict[str, Any], Any]:
    """The row of a case, and its forces; both from the files that its processes wrote."""
    out = folder / f"{atoms}-{ranks}"
    command = [options.launcher, "-n", str(ranks), sys.executable, "-m", "benchmarks.lammps_steps"]
    command += ["--worker", str(atoms), "--out", str(out)]
    command += ["--steps", str(options.steps), "--precision", options.precision, "--skin", str(options.skin)]
    command += ["--threads", str(options.threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    row: dict[str, Any] = {"atoms": atoms, "ranks": ranks, "gpus": min(ranks, torch.cuda.device_count())}
    row |= {"precision": options.precision, "skin": options.skin, "threads": options.threads}
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        errors = [line for line in lines if re.search(r"ERROR|^\w*(Error|Refused|Memory)\b|^torchmdx", line)]
        return row | {"error": (errors or lines[-3:] or ["no message"])[0][:600]}, None
    log = Path(f"{out}.log").read_text().split("Loop time of")[-1]
    loop = float(log.split()[0])
    parts = {name: float(value) for name, value in re.findall(r"^(\w+) +\|[^|]*\| *([\d.e+-]+)", log, re.M)}
    processes = [json.loads(Path(f"{out}.{rank}.json").read_text()) for rank in range(ranks)]
    return row | {
        "ms": round(1e3 * loop / options.steps, 3),
        "pair_ms": round(1e3 * parts.get("Pair", float("nan")) / options.steps, 3),
        "communication_ms": round(1e3 * parts.get("Comm", float("nan")) / options.steps, 3),
        "builds": int(re.findall(r"Neighbor list builds = (\d+)", log)[0]),
        "steps": options.steps,
        "processes": processes,
    }, np.load(f"{out}.npy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--atoms", type=int, nargs="+", default=[24_000, 98_304, 999_000, 2_400_000])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--skin", type=float, default=1.0)
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--launcher", default=shutil.which("mpiexec.hydra") or "mpiexec")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--out", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options)
        return
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for atoms in options.atoms:
            first: tuple[float, Any] | None = None
            for ranks in options.ranks:
                row, forces = run_case(options, atoms, ranks, Path(folder))
                if forces is not None and first is None:
                    first = row["ms"], forces
                elif forces is not None and first is not None:
                    speedup, shares = first[0] / row["ms"], row["gpus"] < ranks
                    row["work_ratio" if shares else "speedup"] = round(speedup * (ranks if shares else 1), 3)
                    row["force_difference"] = float(np.linalg.norm(forces - first[1]) / np.linalg.norm(first[1]))
                rows.append(row)
                print(json.dumps(row), flush=True)
                record.write("lammps", rows)


if __name__ == "__main__":
    main()
