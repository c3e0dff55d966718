"""Times one evaluation, search included: torchmdx captured, and torchmd-net in its fastest mode, in one run.

    python -m benchmarks.step [--model tensornet2] [--peer] [--names water8000,dhfr]
    python -m benchmarks.step --sweep [--peer] [--names alanine_dipeptide,dhfr]

TensorNet, 2 layers (TensorNet2, 1 layer and 16 charges), 128 channels, 32 radial functions, 5 Å, float32, the same
weights on both sides, scaled so that forces are about 1 eV/Å. Results go to step.json and tensornet2.json. --sweep:
TensorNets of 0, 1 and 2 layers with 64 and 128 channels and 4.5 Å, to step_models.json. ms: medians of CUDA events.
wall_ms: from NumPy positions to NumPy forces. force_error: against the exact model in float64, relative, of the whole
structure where it fits into memory, else of a few of its atoms. transient_GB: memory that capture and audit took
beyond step_memory_GB, until the first result. floors_ms: lower bounds at the peak
throughput of each unit of the device (benchmarks/roofline). roofline_share: the largest of them, divided by ms;
floors_sum_share: their sum, divided by ms.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import time
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks import peer_model, record, systems
from benchmarks.roofline.bounds import least_seconds
from torchmdx import Batch, Potential, System, TensorNet2Config, TensorNetConfig, evaluate
from torchmdx.step.captured_step import CapturedStep

# name: (copies, modes of the peer, of which the fastest counts)
CASES: dict[str, tuple[int, str]] = {
    "alanine_dipeptide": (1, "graph,compile"),
    "testosterone": (1, "graph,compile"),
    "chignolin": (1, "graph,compile"),
    "dhfr": (1, "compile"),
    "factorIX": (1, "compile"),
    "water1000": (1, "compile"),
    "water8000": (1, "compile"),
    "water32768": (1, "eager"),
    "water333000": (1, ""),
    "1024x alanine_dipeptide": (1024, "graph"),
}
# The same of TensorNet2.
SECOND_CASES: dict[str, tuple[int, str]] = {
    "alanine_dipeptide": (1, "graph,compile"),
    "chignolin": (1, "graph,compile"),
    "dhfr": (1, "graph,compile"),
    "factorIX": (1, "graph,compile"),
    "water8000": (1, "compile,eager"),
}
EXACT_ATOMS = 3000
# Of the sweep over models: the structures and the models that torchmd-net publishes times of, and its fastest mode.
SWEEP = {
    "alanine_dipeptide": "graph",
    "testosterone": "graph",
    "chignolin": "graph",
    "dhfr": "compile",
    "factorIX": "compile",
}
SWEEP_LAYERS, SWEEP_CHANNELS, SWEEP_CUTOFF = (0, 1, 2), (64, 128), 4.5


def potential(second: bool, **settings: Any) -> Potential:
    """Random weights with filters and forces of the size of trained ones. settings: of a TensorNet."""
    torch.manual_seed(0)
    # the slack of torchmd-net's equilibration
    second_config = TensorNet2Config(num_layers=1, max_z=99, charge_slack=1e-6)
    config = second_config if second else TensorNetConfig(max_z=99, **settings)
    made = Potential(config).requires_grad_(False)
    with torch.no_grad():
        for layer in made.network.layers:
            layer.filters[4].weight.mul_(4)
        made.scale.fill_(5.0)
    return made


def batch_of(name: str, copies: int) -> Batch:
    numbers, positions, cell = systems.load(name.split()[-1])
    system = System.create(positions, numbers, cell, pbc=None if cell is None else True)
    return Batch.from_systems([system] * copies)


def repeats(num_atoms: int) -> int:
    return 200 if num_atoms < 10000 else 30 if num_atoms < 30000 else 5


def ours(model: Potential, batch: Batch) -> tuple[dict[str, Any], torch.Tensor | None]:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    positions, count = batch.positions.numpy(), repeats(batch.num_atoms)
    start = time.perf_counter()
    step = CapturedStep(model, batch, mode="graph")
    result = step(positions)
    seconds, most = time.perf_counter() - start, torch.cuda.max_memory_allocated()
    times = []
    for _ in range(count):
        start = time.perf_counter()
        step(positions)
        times.append(time.perf_counter() - start)
    replay = peer_model.milliseconds(step.policy.graphs["host"].replay, count, 5)
    report = step.report()
    exact, error, energy_error = None, report.error, None
    if batch.num_atoms <= EXACT_ATOMS:
        reference = evaluate(copy.deepcopy(model).double(), batch.to("cuda"))
        assert reference.forces is not None
        exact = reference.forces
        forces = torch.from_numpy(result.forces).cuda()
        error = float((forces - exact).norm() / exact.norm())
        energy_error = float(abs(reference.energy.cpu().numpy() - result.energy).max()) / batch.num_atoms
    least = {name: 1e3 * seconds for name, seconds in least_seconds(step, model, "float32").items()}
    row = {
        "by": "torchmdx",
        "mode": step.mode,
        "engine": report.engine,
        "ms": replay,
        "roofline_share": round(max(least.values()) / replay, 3),
        "floors_sum_share": round(sum(least.values()) / replay, 3),
        "floors_ms": {name: round(value, 5) for name, value in least.items()},
        "wall_ms": sorted(times)[count // 2] * 1e3,
        "setup_s": round(seconds, 2),
        "nodes": report.nodes,
        "force_error": error,
        "energy_error_per_atom_eV": energy_error,
        "memory_GB": round(torch.cuda.max_memory_allocated() / 2**30, 3),
        "step_memory_GB": round(report.memory_bytes / 2**30, 3),
        "transient_GB": round((most - report.memory_bytes) / 2**30, 3),
    }
    return row, exact


def theirs(model: Potential, batch: Batch, mode: str, exact: torch.Tensor | None) -> dict[str, Any]:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    batch = batch.to("cuda")
    box = batch.cell[0].float() if batch.pbc.any() else None
    config = model.config
    most = min(64, int(batch.counts().max()))
    start = time.perf_counter()
    sizes = (config.cutoff, config.num_channels, config.num_layers, config.num_radial, box, most)
    peer = peer_model.build(mode, *sizes, charges=getattr(config, "num_charges", 0))
    peer_model.copy_weights(model, peer)
    run, forces = peer_model.prepare(mode, peer, batch.atomic_numbers, batch.positions.float(), batch.system_index, box)
    run()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    count = min(50, repeats(batch.num_atoms))
    row = {
        "by": "torchmd-net",
        "mode": mode,
        "ms": peer_model.milliseconds(run, count, 3),
        "setup_s": round(seconds, 1),
    }
    if exact is not None:
        row["force_error"] = float((forces().double() * float(model.scale) - exact).norm() / exact.norm())
    row["memory_GB"] = round(torch.cuda.max_memory_allocated() / 2**30, 3)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("tensornet", "tensornet2"), default="tensornet")
    parser.add_argument("--names", help="of structures; all of them if left out")
    parser.add_argument("--peer", action="store_true", help="time torchmd-net as well")
    parser.add_argument("--sweep", action="store_true", help="models of several sizes instead")
    options = parser.parse_args()
    if options.sweep:
        sweep(options.names.split(",") if options.names else list(SWEEP), options.peer)
        return
    second = options.model == "tensornet2"
    cases = SECOND_CASES if second else CASES
    model, rows = potential(second).cuda(), []
    for name in options.names.split(",") if options.names else cases:
        copies, modes = cases[name]
        batch = batch_of(name, copies)
        for row in compare(model, batch, modes.split(",") if options.peer and modes else []):
            rows.append({"system": name, "atoms": batch.num_atoms, **row})
            print(rows[-1], flush=True)
        record.write("tensornet2" if second else "step", rows)


def sweep(names: Sequence[str], peer: bool) -> None:
    """Rows of every model of the sweep for every structure."""
    rows = []
    for layers, channels in itertools.product(SWEEP_LAYERS, SWEEP_CHANNELS):
        sizes = dict(num_layers=layers, num_channels=channels, cutoff=SWEEP_CUTOFF)
        model = potential(False, **sizes).cuda()
        for name in names:
            batch = batch_of(name, 1)
            for row in compare(model, batch, [SWEEP[name]] if peer else []):
                rows.append({"system": name, "atoms": batch.num_atoms, **sizes, **row})
                print(rows[-1], flush=True)
            record.write("step_models", rows)


def compare(model: Potential, batch: Batch, modes: list[str]) -> list[dict[str, Any]]:
    """Rows of torchmdx and of the peer in these modes; torchmdx's has the speedup over the fastest of them."""
    found: list[dict[str, Any]] = []
    exact = None
    try:
        row, exact = ours(model, batch)
        found.append(row)
    except Exception as error:
        found.append({"by": "torchmdx", "error": f"{type(error).__name__}: {error}"[:300]})
    for mode in modes:
        try:
            found.append(theirs(model, batch, mode, exact))
        except Exception as error:
            found.append({"by": "torchmd-net", "mode": mode, "error": f"{type(error).__name__}: {error}"[:300]})
        torch._dynamo.reset()
    times = [row["ms"] for row in found[1:] if "ms" in row]
    if times and "ms" in found[0]:
        found[0]["speedup"] = round(min(times) / found[0]["ms"], 2)
    return found


if __name__ == "__main__":
    main()
