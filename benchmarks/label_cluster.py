"""Labels by a cluster of two workers, of which one is killed on the way: none lost, none twice.

    python -m benchmarks.label_cluster [--frames 200]

Frames are displaced molecules, labelled with GFN2-xTB by two processes of this machine, by two workers of a
LocalCluster, and by these while one is killed after half of the labels. Results go to label_cluster.json.
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from ase.build import molecule
from ase.io import read, write

from benchmarks import record
from benchmarks.learning_pools import COMMON, OTHERS

KEYS = ("by",)
CALCULATOR = "gfn2-xtb"


def frames(count: int) -> list[Any]:
    """Molecules in turn, with atoms displaced by 0.05 Å, and their number."""
    rng, names, found = np.random.default_rng(0), (*COMMON, *OTHERS), []
    for number in range(count):
        atoms = molecule(names[number % len(names)])
        atoms.set_initial_magnetic_moments(np.zeros(len(atoms)))
        atoms.positions += 0.05 * rng.normal(size=atoms.positions.shape)
        atoms.info["number"] = number
        found.append(atoms)
    return found


def labelled(folder: Path, count: int, cluster: Any, killed: bool) -> dict[str, Any]:
    """Labels all frames into a file; what is in it, and how long that took."""
    from torchmdx.datasets.labelling.calculators import Choice
    from torchmdx.datasets.labelling.run import Crew, Paths, label
    from torchmdx.datasets.labelling.sources import StructureFiles

    source, output = folder / "frames.extxyz", folder / "labelled.extxyz"
    write(source, frames(count), format="extxyz")
    address = None if cluster is None else cluster.scheduler_address
    crew = Crew(2 if cluster is None else 1, None, io.StringIO(), dask=address)
    deaths: list[int] = []
    if killed:
        arguments = (cluster, Paths(output).journal, count // 2, deaths)
        threading.Thread(target=_kill_one, args=arguments, daemon=True).start()
    began = time.monotonic()
    summary = label(StructureFiles((source,)), output, Choice(CALCULATOR), crew=crew)
    seconds = time.monotonic() - began
    found = [(int(str(one.info["origin"]).rpartition(":")[2]), one.get_potential_energy()) for one in read(output, ":")]
    places, energies = Counter(place for place, _ in found), dict(found)
    return {
        "frames": count,
        "labels": sum(places.values()),
        "lost": count - len(places),
        "twice": sum(times - 1 for times in places.values()),
        "failed": len(summary.failures),
        "killed": len(deaths),
        "seconds": seconds,
        "energies": [energies[k] for k in sorted(energies)],
    }


def _kill_one(cluster: Any, journal: Path, labels: int, deaths: list[int]) -> None:
    """Kills the first worker once this number of labels is in the journal."""
    while not journal.exists() or journal.read_bytes().count(b"\n") < labels:
        time.sleep(0.01)
    process = next(iter(cluster.workers.values())).pid
    os.kill(process, signal.SIGKILL)
    deaths.append(process)


def main() -> None:
    from distributed import LocalCluster

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=200)
    options = parser.parse_args()
    rows, known = [], None
    for by in ("own processes", "dask", "dask, a worker killed"):
        with tempfile.TemporaryDirectory() as folder:
            if by == "own processes":
                row = labelled(Path(folder), options.frames, None, False)
            else:
                workers = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
                with LocalCluster(**workers) as cluster:
                    row = labelled(Path(folder), options.frames, cluster, "killed" in by)
        energies = np.array(row.pop("energies"))
        known = energies if known is None else known
        row |= {"by": by, "energies_differ_by_eV": float(np.abs(energies - known).max())}
        print(row, flush=True)
        rows.append(row)
    print(record.update("label_cluster", rows, KEYS))


if __name__ == "__main__":
    main()
