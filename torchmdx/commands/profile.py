"""`torchmdx profile`: the time of an evaluation by kernel, and how a GPU is used."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torchmdx.commands.options import add_index, add_model_options, make_calculator, structure_of
from torchmdx.runtime.wording import counted

if TYPE_CHECKING:
    import torch

EVALUATIONS = 20
MOST_SHOWN = 10
STEPS_A_NS = 1e6  # of 1 fs


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "profile",
        help="print the most expensive kernels of an evaluation and write a trace",
        description="Profiles evaluations of energy and forces. The trace can be viewed at ui.perfetto.dev. On "
        "a GPU also prints the share of the time in which it idles, and the energy of an evaluation.",
    )
    parser.add_argument("file", metavar="FILE", help="structure file, in any format that ASE reads")
    add_model_options(parser, dtype="float32")
    add_index(parser)
    parser.add_argument("-o", "--output", default="trace.json", metavar="FILE", help="trace file (default: trace.json)")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing trace")
    parser.set_defaults(run=run, locked=("output",))


def run(options: argparse.Namespace) -> int:
    from torch.profiler import ProfilerActivity, profile

    from torchmdx.runtime.files import require_new
    from torchmdx.step.captured_step import CapturedStep
    from torchmdx.structures.system import System

    if not options.overwrite:
        require_new(options.output)
    calculator = make_calculator(options)
    record = structure_of(options)
    atoms = record.atoms
    on_gpu = calculator.potential.device.type == "cuda"
    mode = "graph" if on_gpu else "eager"
    step = CapturedStep(calculator.potential, System.from_ase(atoms, record.charge), mode=mode, precision=options.dtype)
    for _ in range(3):
        step(atoms.positions)
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * on_gpu
    with profile(activities=activities) as found:
        for _ in range(EVALUATIONS):
            step(atoms.positions)
    found.export_chrome_trace(options.output)
    print(f"{counted(len(atoms), 'atom')}, {record.charge_text}, mode {step.mode}, {step.engine.name}")
    print(f"trace of {EVALUATIONS} evaluations in {options.output}\n")
    _print_most_expensive(found, on_gpu)
    if on_gpu:
        print()
        _print_use_of_gpu(found, lambda: step(atoms.positions), step.device)
    return 0


def _print_use_of_gpu(found: torch.profiler.profile, run: Callable[[], object], device: torch.device) -> None:
    """Prints the share of the time in which the GPU idles, and the energy of an evaluation."""
    from torchmdx.runtime.gpu_energy import EnergyMeter, NoEnergyReading

    spans = [event.time_range for event in found.events() if event.device_type.name == "CUDA"]
    idle = idle_share([(span.start, span.end) for span in spans])
    print(f"the GPU idles for {idle:.1%} of the time, under the profiler")
    try:
        used = EnergyMeter(device).measure(run)
    except NoEnergyReading as error:
        print(f"energy was not measured: {error}")
        return
    print(
        f"{used.joules_a_run * 1e3:.3g} mJ per step, {used.watts:.0f} W; {used.joules_a_run * STEPS_A_NS:.0f} J/ns "
        "with a time step of 1 fs"
    )


def idle_share(spans: Sequence[tuple[float, float]]) -> float:
    """The part of the time between the first start and the last end in which none of these spans runs; 0 for none."""
    busy, reached = 0.0, -math.inf
    for start, end in sorted(spans):
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    whole = max((end for _, end in spans), default=0.0) - min((start for start, _ in spans), default=0.0)
    return 1 - busy / whole if whole > 0 else 0.0


def _print_most_expensive(found: torch.profiler.profile, on_gpu: bool) -> None:
    """Prints the ten kernels (on the CPU: operations) that take the most time."""
    times: dict[str, tuple[float, int]] = {}
    for event in found.key_averages():
        microseconds = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        if microseconds > 0:
            times[event.key] = (microseconds, event.count)
    total = sum(microseconds for microseconds, _ in times.values())
    print(f"{'µs/step':>10} {'share':>6} {'calls':>6}  {'kernel' if on_gpu else 'operation'}")
    slowest = sorted(times.items(), key=lambda item: -item[1][0])[:MOST_SHOWN]
    for name, (microseconds, count) in slowest:
        calls = count / EVALUATIONS
        print(f"{microseconds / EVALUATIONS:>10.1f} {microseconds / total:>6.1%} {calls:>6.1f}  {name[:90]}")
    print(f"{total / EVALUATIONS:>10.1f} {'100%':>6} {'':>6}  total")
