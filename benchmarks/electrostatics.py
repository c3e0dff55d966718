"""What the Coulomb energy of a periodic system adds to a captured step: an Ewald sum beside a reaction field.

    python -m benchmarks.electrostatics [FILE] [--names water216,peptide_in_water,water8000] [--cutoffs 9,12]

FILE: a TensorNet2 with a Coulomb prior, such as AceFF-2.0; without it random weights with as many sets of charges.
float32, on the GPU or the CPU. ms: medians, of CUDA events around a replay, or of evaluations on a CPU; search and
copies included. share: part of the step that the prior takes, from the step without it. reciprocal_ms: the sum over
vectors alone, in torch. field_error: force error of a reaction field of 10 Å, and force_error that of the step, relative to the
forces of a step with an Ewald sum of accuracy 1e-9, up to 3,000 atoms. asked_share: the goal.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import peer_model, record, step
from torchmdx import Batch, CapturedStep, Potential, load
from torchmdx.engines.reciprocal import differentiate_reciprocal
from torchmdx.models.ensemble import members_of
from torchmdx.models.priors.coulomb import Coulomb, CoulombConfig
from torchmdx.models.priors.ewald import DEFAULT_CUTOFF
from torchmdx.models.tensornet2 import TensorNet2Config
from torchmdx.neighbors.explicit import search_explicitly

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
NAMES = ("water216", "peptide_in_water", "water8000") if GPU else ("water216",)
CUTOFFS = (9.0, 12.0, 14.0) if GPU else (9.0, 12.0)
FIELD_CUTOFF, TIGHT = 10.0, 1e-9
SHARES = (0.25, 0.5)  # asked for, on a GPU and on a CPU
MOST_EXACT = 3000  # atoms


def charged(file: str | None) -> Potential:
    """A TensorNet2 of 48 sets of charges."""
    if file is not None:
        found = load(file, dtype=torch.float32, device=DEVICE)
        assert isinstance(found, Potential)
        return found
    torch.manual_seed(0)
    config = TensorNet2Config(num_layers=2, num_charges=16, max_z=99, cutoff=5.0)
    return Potential(config, [CoulombConfig(periodic="ewald")]).requires_grad_(False).to(DEVICE)


def with_coulomb(potential: Potential, **settings: Any) -> Potential:
    """The same potential with other settings of its Coulomb prior."""
    configs = [replace(c, **settings) if isinstance(c, CoulombConfig) else c for c in potential.prior_configs]
    return potential.with_priors(configs)


def milliseconds(run: Callable[[], Any]) -> float:
    """Of one run, a median."""
    if GPU:
        return peer_model.milliseconds(run, 50, 5)
    run()
    times = []
    for _ in range(5):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def timed(potential: Potential, batch: Batch) -> tuple[float, Tensor, CapturedStep]:
    """Time of a step, ms, its forces [N,3], and the step."""
    made = CapturedStep(potential, batch, mode="graph" if GPU else "auto")
    positions = batch.positions.cpu().numpy()
    forces = torch.from_numpy(made(positions).forces)
    run = made.policy.graphs["host"].replay if GPU else lambda: made(positions)
    return milliseconds(run), forces, made


def coulomb_of(potential: Potential) -> Coulomb:
    (found,) = (prior for prior in potential.priors if isinstance(prior, Coulomb))
    found.keep_lists()
    return found


def charges_of(potential: Potential, batch: Batch) -> Tensor:
    """Charges [N,M] that the network predicts."""
    edges = search_explicitly(batch, float(potential.config.cutoff))
    with torch.no_grad():
        vectors = edges.vectors(batch.positions, batch.cell, batch.system_index).to(potential.dtype)
        _, charges = potential.with_priors(()).features(batch.to(dtype=potential.dtype), edges, vectors)
    assert charges is not None
    return charges


def reciprocal(potential: Potential, batch: Batch, charges: Tensor) -> tuple[float, int]:
    """Time of the sum over vectors, ms, and their number."""
    prior, flag = coulomb_of(potential), torch.zeros((), dtype=torch.bool, device=DEVICE)
    prior.to(DEVICE)

    def run() -> Any:
        return differentiate_reciprocal(prior, batch, charges, flag)

    run()
    assert prior.kept is not None
    assert prior.kept.latest is not None
    if not GPU:
        return milliseconds(run), prior.kept.latest.count
    from torchmdx.step.graph import Graph

    return milliseconds(Graph(run, torch.device(DEVICE)).replay), prior.kept.latest.count


def relative(found: Tensor, exact: Tensor | None) -> float | None:
    return None if exact is None else float((found - exact).norm() / exact.norm())


def rows_of(potential: Potential, name: str, cutoffs: list[float]) -> list[dict[str, Any]]:
    batch = step.batch_of(name, 1)
    device_batch = batch.to(DEVICE)
    charges = charges_of(potential, device_batch)
    without, _, _ = timed(potential.with_priors(()), batch)
    exact = None
    if batch.num_atoms <= MOST_EXACT:
        _, exact, _ = timed(with_coulomb(potential, periodic="ewald", accuracy=TIGHT, cutoff=9.0), batch)
    field = with_coulomb(potential, periodic="reaction_field", cutoff=FIELD_CUTOFF)
    found, forces, _ = timed(field, batch)
    common = {"system": name, "atoms": batch.num_atoms, "sets": charges.shape[1], "ms_without": without}
    rows = [
        common
        | {"coulomb": "reaction field", "cutoff": FIELD_CUTOFF, "ms": found, "share": round(1 - without / found, 3)}
        | {"field_error": relative(forces, exact)}
    ]
    for cutoff in (None, *cutoffs):
        free = cutoff is None
        kind, length = ("auto", DEFAULT_CUTOFF) if cutoff is None else ("ewald", cutoff)
        summed = with_coulomb(potential, periodic=kind, cutoff=length)
        found, forces, made = timed(summed, batch)
        chosen = coulomb_of(members_of(made.potential)[0]).config.cutoff
        alone, count = reciprocal(with_coulomb(summed, periodic="ewald", cutoff=chosen), device_batch, charges)
        rows.append(
            common
            | {
                "coulomb": "ewald, by size" if free else "ewald",
                "cutoff": chosen,
                "vectors": count,
                "ms": found,
                "reciprocal_ms": alone,
            }
            | {"share": round(1 - without / found, 3), "asked_share": SHARES[not GPU]}
            | {"force_error": relative(forces, exact), "engine": made.report().engine, "nodes": made.report().nodes}
        )
        if GPU:
            torch.cuda.empty_cache()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?")
    parser.add_argument("--names", default=",".join(NAMES))
    parser.add_argument("--cutoffs", default=",".join(map(str, CUTOFFS)))
    options = parser.parse_args()
    potential = charged(options.file)
    for name in options.names.split(","):
        rows = rows_of(potential, name, [float(cutoff) for cutoff in options.cutoffs.split(",")])
        for row in rows:
            row["potential"] = Path(options.file).stem if options.file else "random weights"
            print(row, flush=True)
        record.update("electrostatics", rows, ("system", "coulomb", "cutoff"))


if __name__ == "__main__":
    main()
