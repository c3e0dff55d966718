"""`torchmdx bench`: time and energy of an evaluation on this machine in each mode, and the least time it could take."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torchmdx.commands.options import add_model_options, make_calculator, structure_of
from torchmdx.wording import counted

if TYPE_CHECKING:
    import torch

    from torchmdx.models.ensemble import Ensemble
    from torchmdx.models.potential import Potential
    from torchmdx.runtime.gpu_energy import EnergyMeter, NoEnergyReading
    from torchmdx.step.captured_step import CapturedStep

SECONDS_A_DAY = 86400.0
SECONDS_TO_MEASURE = 2.0
STEPS_A_NS = 1e6  # of 1 fs


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "bench",
        help="measure the time of energy and forces of a structure",
        description="Measures the time of one evaluation of energy and forces, from NumPy positions to NumPy forces, "
        "neighbour search included: in eager mode and, on a GPU, as a captured CUDA graph. 'of floor' is the largest "
        "of the least times that the device's units need, divided by the time of a step.",
    )
    parser.add_argument("file", metavar="FILE", help="structure file, in any format that ASE reads")
    add_model_options(parser, dtype="float32")
    parser.add_argument(
        "--index", default="-1", metavar="I", help="index of the structure in the file (default: -1, the last)"
    )
    parser.add_argument(
        "--skin", type=float, default=0.0, metavar="Å", help="distance added to the search radius, Å (default: 0)"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    import torch

    from torchmdx.step.captured_step import CapturedStep
    from torchmdx.system import System

    potential = make_calculator(options).potential
    record = structure_of(options)
    atoms = record.atoms
    system = System.from_ase(atoms, record.charge)
    device = potential.device
    threads = counted(torch.get_num_threads(), "thread")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {threads}"
    size = counted(len(atoms), "atom")
    print(f"{atoms.get_chemical_formula()}: {size}, {record.charge_text}; {options.dtype} on {name}")
    heads = ("ms a step", "µs an atom", "ns/day, 1 fs", "memory / MiB", "of floor", "GPU idle", "J/ns, 1 fs")
    print(f"{'mode':<8}" + "".join(f"{head:>14}" for head in heads))
    meter, no_energy = _meter(device)
    for mode in ("eager", "graph") if device.type == "cuda" else ("eager",):
        step = CapturedStep(potential, system, mode=mode, skin=options.skin, precision=options.dtype)
        step(atoms.positions)
        least, counted_for = least_times(step, potential, options.dtype)
        seconds = median_seconds(lambda step=step: step(atoms.positions, copy=False))  # type: ignore[misc]
        report, busy = step.report(), replay_seconds(step)
        joules = None if meter is None else meter.measure(lambda step=step: step(atoms.positions)).joules_a_run  # type: ignore[misc]
        cells = [
            f"{seconds * 1e3:.4f}",
            f"{seconds * 1e6 / max(len(atoms), 1):.3f}",
            f"{SECONDS_A_DAY / seconds * 1e-6:.1f}",
            f"{report.memory_bytes / 2**20:.1f}" if device.type == "cuda" else "-",
            f"{max(least.values()) / seconds:.0%}" if least else "-",
            "-" if busy is None else f"{max(0.0, 1 - busy / seconds):.0%}",
            "-" if joules is None else f"{joules * STEPS_A_NS:.0f}",
        ]
        print(f"{mode:<8}" + "".join(f"{cell:>14}" for cell in cells))
    if least:
        print("\n" + "\n".join(described(least, counted_for)))
    if no_energy is not None and device.type == "cuda":
        print(f"\nenergy was not measured: {no_energy}")
    print()
    print(step.report())
    return 0


# Of what the least times are made, by what takes them: floors.floors.
MEANINGS = {
    "tensor cores": "products of matrices",
    "CUDA cores": "filters, sums over neighbours, products of 3 x 3 matrices, products of matrices in float32",
    "arithmetic": "products of matrices, filters, sums over neighbours",
    "HBM": "tensors that are written and read again, but for what the L2 cache holds",
    "memory": "tensors that are written and read again, but for what the last cache holds",
    "L1": "tensors of neighbours and coefficients of filters, read for each edge",
}


def described(least: dict[str, float], counted_for: list[str]) -> list[str]:
    """Lines: floors with what they count, and their largest and their sum. counted_for: how engines evaluate."""
    together = {"at the same time": max(least.values()), "one after the other": sum(least.values())}
    return [
        "least times of this evaluation, ms, without gates, norms, lists and search:",
        *(f"  {name:<20}{seconds * 1e3:>10.4f}  {MEANINGS[name]}" for name, seconds in least.items()),
        *(f"  {name:<20}{seconds * 1e3:>10.4f}" for name, seconds in together.items()),
        *(f"counted for: {how}" for how in dict.fromkeys(counted_for)),
    ]


def _meter(device: torch.device) -> tuple[EnergyMeter | None, NoEnergyReading | None]:
    """What measures energy, or why nothing does."""
    from torchmdx.runtime.gpu_energy import EnergyMeter, NoEnergyReading

    try:
        return EnergyMeter(device), None
    except NoEnergyReading as error:
        return None, error


def median_seconds(run: Callable[[], object]) -> float:
    """Median wall-clock time of a call, over about SECONDS_TO_MEASURE."""
    times: list[float] = []
    for _ in range(3):
        run()
    while (sum(times) < SECONDS_TO_MEASURE and len(times) < 1000) or len(times) < 3:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]


def replay_seconds(step: CapturedStep, repeats: int = 50) -> float | None:
    """Median time that a GPU works on the graph of a step, by CUDA events; None without a graph."""
    import torch

    graph = step.policy.graphs.get("host")
    if graph is None:
        return None
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e-3)
    return sorted(times)[repeats // 2]


def least_seconds(step: CapturedStep, potential: Potential | Ensemble, precision: str) -> dict[str, float]:
    """The floors of a step on its device, by what takes the time; empty if the work of the model is not known.

    Counted for the positions of its last evaluation.
    """
    return least_times(step, potential, precision)[0]


def least_times(
    step: CapturedStep, potential: Potential | Ensemble, precision: str
) -> tuple[dict[str, float], list[str]]:
    """`least_seconds`, and how the engines evaluate each model."""
    from torchmdx.commands.device_rates import device_rates
    from torchmdx.commands.engine_evaluations import evaluations_of
    from torchmdx.commands.floors import Work, floors, work_of
    from torchmdx.models.ensemble import Ensemble

    members = list(potential) if isinstance(potential, Ensemble) else [potential]
    evaluations = evaluations_of(step.engine)
    parts = [
        work_of(member, step.batch.num_atoms, _edges_within(step, member), how)
        for member, how in zip(members, evaluations, strict=True)
    ]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return {}, []
    work = sum(known, Work())
    return floors(work, device_rates(potential.device, precision, work.units)), [str(how) for how in evaluations]


def _edges_within(step: CapturedStep, potential: Potential) -> int:
    """Edges that are evaluated: the list may have longer ones than the cutoff of the network."""
    edges, batch, cutoff = step.search.edges, step.ordered, float(potential.config.cutoff)
    if potential.search_cutoff(step.batch) + step.skin <= cutoff:
        return int(edges.num_edges)
    vectors = edges.vectors(batch.positions, batch.cell, batch.system_index)
    return int((vectors.norm(dim=1) <= cutoff).sum())
