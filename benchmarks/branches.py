"""Times steps with branches of their graph, and with the same launches one after the other.

    python -m benchmarks.branches [FOLDER] [--names chignolin,dhfr]

FOLDER as for benchmarks.released. float32, energies and forces. ms: median of replays, search and copies included;
in_turn_ms: with nothing in branches; saved: the share of in_turn_ms. Branches of AceFF-2.0: opposite edges and readout,
in a box also the sum over the reciprocal lattice; of organic-1 with D3: the dispersion energy; of an ensemble: members.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import torchmdx
from benchmarks import record, released, released_systems, step
from torchmdx import Batch, Ensemble, Potential, System
from torchmdx.engines.gpu.branches import Branch
from torchmdx.engines.plan import members
from torchmdx.models.priors.d3 import D3Config
from torchmdx.step.captured_step import CapturedStep

Row = dict[str, Any]
MEMBERS = 4
NAMES = {
    "aceff-2.0": ("chignolin", "dhfr", "peptide_in_water"),
    "organic-1, D3": ("alanine_dipeptide", "chignolin", "dhfr"),
    f"organic-1, {MEMBERS} members": ("alanine_dipeptide", "chignolin"),
}


@contextmanager
def in_turn() -> Iterator[None]:
    """Steps that are made here launch one thing after the other."""
    with (
        patch.object(Branch, "run", lambda self, work: work()),
        patch.object(members, "MOST_SIDE_BY_SIDE", 0),
        patch.object(members, "MOST_EXACT_SIDE_BY_SIDE", 0),
    ):
        yield


def potential_of(kind: str, folder: Path | None) -> Potential | Ensemble | None:
    path = released_systems.find(folder, kind.split(",")[0])
    if path is None:
        return None
    found = torchmdx.load(path, dtype=torch.float32, device=released.DEVICE)
    assert isinstance(found, Potential)
    if "D3" in kind:
        return found.with_priors([*found.prior_configs, D3Config(functional="pbe")])
    return Ensemble([found] * MEMBERS) if "members" in kind else found


def milliseconds(potential: Potential | Ensemble, batch: Batch) -> tuple[float, int | None]:
    """Of a step, and the nodes of its graph."""
    captured = CapturedStep(potential, batch, mode="graph" if released.GPU else "eager")
    positions = batch.positions.numpy()
    captured(positions)
    run = captured.policy.graphs["host"].replay if released.GPU else lambda: captured(positions)
    return released.milliseconds(run, step.repeats(batch.num_atoms)), captured.report().nodes


def measure(kind: str, name: str, potential: Potential | Ensemble) -> Row:
    batch = Batch.from_systems([System.from_ase(released_systems.structure(name))])
    parallel, nodes = milliseconds(potential, batch)
    with in_turn():
        after, _ = milliseconds(potential, batch)
    return dict(
        potential=kind,
        system=name,
        atoms=batch.num_atoms,
        ms=round(parallel, 4),
        in_turn_ms=round(after, 4),
        saved=round(1 - parallel / after, 3),
        nodes=nodes,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=os.environ.get("RELEASED_POTENTIALS"))
    parser.add_argument("--names", default="", help="only these systems, comma-separated")
    options = parser.parse_args()
    for kind, names in NAMES.items():
        potential = potential_of(kind, options.folder and Path(options.folder))
        if potential is None:
            print(f"{kind}: not in {options.folder}", flush=True)
            continue
        for name in names:
            if not options.names or name in options.names.split(","):
                row = measure(kind, name, potential)
                print(row, flush=True)
                record.update("branches", [row], ("potential", "system"))


if __name__ == "__main__":
    main()
