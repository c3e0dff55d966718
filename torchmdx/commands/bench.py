"""`torchmdx bench`: the time of an evaluation on this machine in each mode, compared with a roofline estimate."""

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
    from torchmdx.step.captured_step import CapturedStep

SECONDS_A_DAY = 86400.0
SECONDS_TO_MEASURE = 2.0


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "bench",
        help="measure the time of energy and forces of a structure",
        description="Measures the time of one evaluation of energy and forces, from NumPy positions to NumPy forces, "
        "neighbour search included: in eager mode and, on a GPU, as a captured CUDA graph.",
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
    print(f"{'mode':<8}{'ms a step':>12}{'µs an atom':>12}{'ns/day, 1 fs':>14}{'memory / MiB':>14}{'of roofline':>13}")
    floor = None
    for mode in ("eager", "graph") if device.type == "cuda" else ("eager",):
        step = CapturedStep(potential, system, mode=mode, skin=options.skin, precision=options.dtype)
        step(atoms.positions)
        floor = roofline_seconds(step, potential) if floor is None else floor
        seconds = median_seconds(lambda step=step: step(atoms.positions, copy=False))  # type: ignore[misc]
        share = f"{floor / seconds:.0%}" if floor else "-"
        report = step.report()
        memory = f"{report.memory_bytes / 2**20:.1f}" if device.type == "cuda" else "-"
        print(
            f"{mode:<8}{seconds * 1e3:>12.4f}{seconds * 1e6 / max(len(atoms), 1):>12.3f}"
            f"{SECONDS_A_DAY / seconds * 1e-6:>14.1f}{memory:>14}{share:>13}"
        )
    print()
    print(step.report())
    return 0


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


def roofline_seconds(step: CapturedStep, potential: Potential | Ensemble) -> float:
    """Lower bound on the time of an evaluation: arithmetic or memory traffic at the rates measured on this device.

    For an ensemble, the sum over its members. 0 (unknown) for models other than TensorNet and TensorNet2.

    Arithmetic: matrix products of every atom, and two cubics and their products for every edge and layer; for
    TensorNet2 also the filter network of every edge, forward and backward.
    Traffic: every tensor of the atoms written once and read once, forward and backward; edges read from caches.
    """
    from torchmdx.models.ensemble import Ensemble
    from torchmdx.models.tensornet import TensorNetConfig
    from torchmdx.models.tensornet2 import TensorNet2Config

    if isinstance(potential, Ensemble):
        return sum(roofline_seconds(step, member) for member in potential)
    if not isinstance(potential.config, TensorNetConfig):
        return 0.0
    device, channels = potential.device, potential.config.num_channels
    layers, atoms = potential.config.num_layers, step.batch.num_atoms
    edges = int(step.search.edges.num_edges)
    products = 2 * channels**2 * (9 * (1 + 2 * layers) + 2 + 6 + 3) * 2.0
    operations = atoms * products + edges * (layers + 1) * 150.0 * channels
    if isinstance(potential.config, TensorNet2Config):
        operations += edges * layers * 2 * 8 * channels**2 * 2.0
    traffic = (
        atoms
        * channels
        * 9
        * potential.shift.new_empty(0, dtype=potential.dtype).element_size()
        * 2
        * (2 + 4 * layers)
        * 2.0
    )
    return max(operations / _product_rate(device, potential.dtype), traffic / _copy_rate(device))


def _product_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Operations per second of a product of large matrices in this dtype, without TF32."""
    import torch

    size = 4096 if device.type == "cuda" else 1024
    a = torch.rand(size, size, device=device, dtype=dtype)
    return 2.0 * size**3 / _seconds(lambda: a @ a, device)


def _copy_rate(device: torch.device) -> float:
    """Bytes per second, read plus written, of a large copy."""
    import torch

    a = torch.rand(2**26 if device.type == "cuda" else 2**23, device=device)
    b = torch.empty_like(a)
    return 2.0 * a.numel() * a.element_size() / _seconds(lambda: b.copy_(a), device)


def _seconds(run: Callable[[], object], device: torch.device, repeats: int = 5) -> float:
    import torch

    times = []
    for _ in range(repeats + 2):
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - start)
    return min(times[2:])
