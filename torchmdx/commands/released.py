"""What `torchmdx info NAME` says about a released potential: its page and licence, its file, and what runs on cards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torchmdx.engines.plan import Workload
    from torchmdx.models.potential import Potential

SHOWN = ("CPU", "RTX 4090", "A100", "H100", "B200")  # machines
ATOMS = (22, 2500)


def released_lines(name: str) -> list[str]:
    """Name, description, licence, page and files of a release; empty for another name, and for a file of that name."""
    from torchmdx.checkpoints.hub import RELEASES, copy_in_mirror

    if name not in RELEASES or Path(name).exists():
        return []
    release = RELEASES[name]
    copied = copy_in_mirror(name, release)
    return [
        f"{name}: {release.description}" if release.description else name,
        f"licence: {release.licence}",
        f"page: {release.page}",
        f"file: {release.files}" + ("" if copied is None else f", in the mirror {copied.folder}"),
    ]


def usual_work(potential: Potential, atoms: int, periodic: bool) -> Workload:
    """That of energies and forces of a molecule, or of a periodic structure with its stress."""
    from torchmdx.engines.plan import Workload
    from torchmdx.structures.system import Batch, System

    one = System.create(np.zeros((1, 3)), [1], cell=100 * np.eye(3) if periodic else None, pbc=periodic)
    usual = Workload.usual(atoms, potential.search_cutoff(Batch.of(one)))
    return replace(usual, stress=periodic, periodic=periodic)


def lines_of_machines(potential: Potential, periodic: bool = False) -> list[str]:
    """For each of several machines, what runs in float32: a line for few atoms and, if it differs, for many."""
    from torchmdx.engines.plan import Network, machine_named, plan

    network = replace(Network.of(potential), dtype="float32")
    lines = []
    for name in SHOWN:
        machine = machine_named(name)
        found = []
        for count in ATOMS:
            work = usual_work(potential, count, periodic)
            planned = plan(potential.config, potential.prior_configs, work, "float32", machine, network)
            found.append(planned.why + (f" ({planned.short})" if planned.short and machine.is_gpu else ""))
        for count, what in zip(ATOMS, dict.fromkeys(found), strict=False):
            atoms = f"{count:,} atoms or more" if count != ATOMS[0] else ""
            lines.append(f"  {name:<9} {what}" + (f", {atoms}" if atoms else ""))
    return lines
