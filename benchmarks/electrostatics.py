"""What Coulomb energies of periodic systems add to a captured step: Ewald sums and meshes, and a reaction field.

    python -m benchmarks.electrostatics [FILE] [--names water216,peptide_in_water,water8000] [--cutoffs 9,12]
        [--mesh-cutoffs 7,9]

FILE: a TensorNet2 with a Coulomb prior, such as AceFF-2.0; without it random weights with as many sets of charges.
float32, on the GPU or the CPU. ms: of CUDA events around a replay, or of evaluations on a CPU, all variants in turn,
medians (of a CPU the least, as other programs may run); search and copies included. share: part of the step that the
prior takes, from the step without it. reciprocal_ms: an Ewald sum over vectors alone, in torch. field_error: force
error of a reaction field of 10 Å, and force_error that of the step, relative to the forces of a step with an Ewald sum
of accuracy 1e-9, or beyond 3,000 atoms with a mesh of accuracy 1e-7. Ewald sums of --cutoffs up to 3,000 atoms.
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

from benchmarks import record, step
from torchmdx import Batch, CapturedStep, Potential, load
from torchmdx.engines.reciprocal import differentiate_reciprocal
from torchmdx.models.ensemble import members_of
from torchmdx.models.priors.coulomb import Coulomb, CoulombConfig
from torchmdx.models.tensornet2 import TensorNet2Config
from torchmdx.neighbors.explicit import search_explicitly

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
NAMES = ("water216", "peptide_in_water", "water8000") if GPU else ("water216",)
CUTOFFS = (9.0, 12.0) if GPU else (9.0,)
MESH_CUTOFFS = (7.0, 8.0, 9.0, 10.0) if GPU else (9.0,)
FIELD_CUTOFF = 10.0
TIGHT = dict(periodic="ewald", accuracy=1e-9, cutoff=9.0), dict(periodic="pme", accuracy=1e-7, cutoff=12.0)
MOST_EXACT = 3000  # atoms
ROUNDS = 50 if GPU else 9


def charged(file: str | None) -> Potential:
    """A TensorNet2 of 48 sets of charges."""
    if file is not None:
        found = load(file, dtype=torch.float32, device=DEVICE)
        assert isinstance(found, Potential)
        return found
    torch.manual_seed(0)
    config = TensorNet2Config(num_layers=2, num_charges=16, max_z=99, cutoff=5.0)
    return Potential(config, [CoulombConfig(periodic="auto", cutoff=9.0)]).requires_grad_(False).to(DEVICE)


def with_coulomb(potential: Potential, **settings: Any) -> Potential:
    """The same potential with other settings of its Coulomb prior."""
    configs = [replace(c, **settings) if isinstance(c, CoulombConfig) else c for c in potential.prior_configs]
    return potential.with_priors(configs)


def made_for(potential: Potential, batch: Batch) -> tuple[CapturedStep, Tensor]:
    """A step, captured on a GPU, and its forces."""
    made = CapturedStep(potential, batch, mode="graph" if GPU else "auto")
    return made, torch.from_numpy(made(batch.positions.cpu().numpy()).forces)


def evaluation_of(made: CapturedStep, batch: Batch) -> Callable[[], Any]:
    positions = batch.positions.cpu().numpy()
    return made.policy.graphs["host"].replay if GPU else lambda: made(positions)


def milliseconds(runs: list[Callable[[], Any]]) -> list[float]:
    """Of each run, all in turn."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(ROUNDS):
        for found, run in zip(times, runs, strict=True):
            found.append(seconds(run) * 1e3)
    return [statistics.median(found) if GPU else min(found) for found in times]


def seconds(run: Callable[[], Any]) -> float:
    if not GPU:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start
    run()
    start_event, end_event = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start_event.record()
    run()
    end_event.record()
    end_event.synchronize()
    return start_event.elapsed_time(end_event) / 1e3


def coulomb_of(potential: Potential) -> Coulomb:
    (found,) = (prior for prior in potential.priors if isinstance(prior, Coulomb))
    return found


def charges_of(potential: Potential, batch: Batch) -> Tensor:
    """Charges [N,M] that the network predicts."""
    edges = search_explicitly(batch, float(potential.config.cutoff))
    with torch.no_grad():
        vectors = edges.vectors(batch.positions, batch.cell, batch.system_index).to(potential.dtype)
        _, charges = potential.with_priors(()).features(batch.to(dtype=potential.dtype), edges, vectors)
    assert charges is not None
    return charges


def reciprocal(config: CoulombConfig, potential: Potential, batch: Batch, charges: Tensor) -> Callable[[], Any]:
    """The sum over vectors."""
    prior = coulomb_of(with_coulomb(potential, periodic="ewald", cutoff=config.cutoff)).to(DEVICE)
    prior.keep_lists()
    flag = torch.zeros((), dtype=torch.bool, device=DEVICE)

    def run() -> Any:
        return differentiate_reciprocal(prior, batch, charges, flag)

    run()
    if not GPU:
        return run
    from torchmdx.step.graph import Graph

    return Graph(run, torch.device(DEVICE)).replay


def relative(found: Tensor, exact: Tensor) -> float:
    return float((found - exact).norm() / exact.norm())


def rows_of(potential: Potential, name: str, cutoffs: list[float], mesh_cutoffs: list[float]) -> list[dict[str, Any]]:
    batch = step.batch_of(name, 1)
    on_device, is_small = batch.to(DEVICE), batch.num_atoms <= MOST_EXACT
    charges = charges_of(potential, on_device)
    exact = made_for(with_coulomb(potential, **TIGHT[not is_small]), batch)[1]
    variants = {
        "none": potential.with_priors(()),
        "reaction field": with_coulomb(potential, periodic="reaction_field", cutoff=FIELD_CUTOFF),
        "ewald, by size": with_coulomb(potential, periodic="auto"),
    }
    chosen = [("ewald", cutoff) for cutoff in cutoffs if is_small] + [("pme", cutoff) for cutoff in mesh_cutoffs]
    for method, cutoff in chosen:
        variants[f"{method}, {cutoff:g} Å"] = with_coulomb(potential, periodic=method, cutoff=cutoff)
    steps = {kind: made_for(variant, batch) for kind, variant in variants.items()}
    configs = {kind: coulomb_of(members_of(s.potential)[0]).config for kind, (s, _) in steps.items() if kind != "none"}
    sums = {kind: config for kind, config in configs.items() if config.sums_lattice}
    runs = [evaluation_of(made, batch) for made, _ in steps.values()]
    products = {kind: config for kind, config in sums.items() if config.periodic == "ewald"}
    runs += [reciprocal(config, potential, on_device, charges) for config in products.values()]
    times = milliseconds(runs)
    without, ms = times[0], dict(zip(steps, times, strict=False))
    alone = dict(zip(products, times[len(steps) :], strict=True))
    rows = []
    for kind, config in configs.items():
        made, forces = steps[kind]
        row = {"system": name, "atoms": batch.num_atoms, "sets": charges.shape[1], "coulomb": kind}
        row |= {"cutoff": round(config.cutoff, 2), "ms": ms[kind], "ms_without": without}
        row |= {"share": round(1 - without / ms[kind], 3)}
        if kind in sums:
            row |= {
                "reciprocal_ms": alone.get(kind),
                "force_error": relative(forces, exact),
            }
            row |= {"sum": made.report().ewald}
        else:
            row |= {"field_error": relative(forces, exact)}
        rows.append(row | {"engine": made.report().engine, "nodes": made.report().nodes})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?")
    parser.add_argument("--names", default=",".join(NAMES))
    parser.add_argument("--cutoffs", default=",".join(map(str, CUTOFFS)))
    parser.add_argument("--mesh-cutoffs", default=",".join(map(str, MESH_CUTOFFS)))
    options = parser.parse_args()
    potential = charged(options.file)
    cutoffs = [[float(each) for each in text.split(",")] for text in (options.cutoffs, options.mesh_cutoffs)]
    for name in options.names.split(","):
        rows = rows_of(potential, name, *cutoffs)
        for row in rows:
            row["potential"] = Path(options.file).stem if options.file else "random weights"
            print(row, flush=True)
        record.update("electrostatics_gpu" if GPU else "electrostatics", rows, ("system", "coulomb", "cutoff"))


if __name__ == "__main__":
    main()
