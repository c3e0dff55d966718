"""Times messages of many atoms in CUDA C++ and in Triton, interleaved in one process, on an H100 or H200.

    python -m benchmarks.messages [FOLDER] [--systems NAME,NAME] [--steps NAME,NAME] [--variants NAME,NAME]

ms, fastest_ms: all kernels with forces, replayed from a CUDA graph without the search, median and fastest of rounds in
which the variants take turns; messages_ms, gradient_ms: of all layers, by a profile of replays. force_error: relative,
against the exact model in float64, in blocks. same_bits: of repeated replays. step_ms: a `CapturedStep`, search and
copies included, of Triton's kernels and the two fastest others. FOLDER (or $RELEASED_POTENTIALS) has AceFF-1.1, which
evaluates the peptide in water; the other systems take organic-1. Results go to messages.json.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import json
import os
import statistics
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import kernels, released, systems
from benchmarks.kernels import Case
from benchmarks.record import write
from torchmdx import Batch, Potential, System, load
from torchmdx.engines.gpu import engine, row_messages
from torchmdx.engines.gpu.atom_tiles import TileChain
from torchmdx.engines.gpu.row_messages import RowMessages
from torchmdx.engines.gpu.tensornet import FastTensorNet
from torchmdx.engines.plan.launch_sizes import Tiles
from torchmdx.evaluation.blocks import in_blocks
from torchmdx.evaluation.derivatives import evaluate
from torchmdx.runtime.cuda_kernel import _check, _driver
from torchmdx.step.atom_order import curve_order
from torchmdx.step.captured_step import CapturedStep

SYSTEMS = "water24000,dhfr,batch1024,peptide_in_water,water98304"
STEPS = "water24000,dhfr"
BEST_ONLY = ("peptide_in_water", "water98304")  # with the four fastest variants of the first system
PEPTIDE = "peptide_in_water"
ROUNDS = 7
TRITON = "Triton"
CARVEOUT = 9  # CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, in % of the most
HALF = dict(WIDTH=2, WARPS=24, GRADIENT_WARPS=20, ALL_L1=1)
VARIANTS: dict[str, dict[str, int] | None] = {
    TRITON: None,
    "sorted": {},
    "half, sorted": HALF,
    "unsorted": dict(SORTED=0, WARPS=16, GRADIENT_WARPS=16),
    "sorted, L1": dict(ALL_L1=1),
    "sorted, taken": dict(ALL_L1=1, CHUNKED=1),
    "sorted, side": dict(ALL_L1=1, CHUNKED=2),
    "half, unsorted": HALF | dict(SORTED=0, WARPS=32, GRADIENT_WARPS=24),
    "half, two blocks": HALF | dict(WARPS=12, BLOCKS=2, GRADIENT_WARPS=10, GRADIENT_BLOCKS=2),
    "half, taken": HALF | dict(CHUNKED=1),
}


class CudaMessages(RowMessages, TileChain):
    """The launches of many atoms with messages in CUDA C++."""

    variant = ""

    def __init__(self, model: FastTensorNet, *inputs: Any) -> None:
        super().__init__(model, *inputs)
        self.kernels = {**self.kernels, **launchers(self.variant)}


def macros(name: str) -> dict[str, int]:
    return {key: value for key, value in (VARIANTS[name] or {}).items() if key != "ALL_L1"}


@functools.cache
def launchers(name: str) -> Mapping[str, Any]:
    """The kernels of a variant."""
    made = row_messages.launchers_of(torch.device("cuda", torch.cuda.current_device()), **macros(name))
    if (VARIANTS[name] or {}).get("ALL_L1"):
        for kernel in made.values():
            function = kernel.made._function  # type: ignore[attr-defined]
            _check(_driver().cuFuncSetAttribute(function, CARVEOUT, 0), "cuFuncSetAttribute")
    return made


@contextlib.contextmanager
def taken(name: str) -> Iterator[None]:
    """Evaluations that are allocated and captured within take a variant."""
    choose, chain_type = before = Tiles.choose, FastTensorNet.chain_type

    def sized(*given: Any, **named: Any) -> Tiles:
        tiles = choose(*given, **named)
        half = (VARIANTS[name] or {}).get("WIDTH") == 2
        return replace(tiles, messages_gradient=replace(tiles.messages_gradient, slice=64)) if half else tiles

    def chain(self: FastTensorNet, buffers: Any) -> Any:
        found = chain_type(self, buffers)
        if found is not TileChain or VARIANTS[name] is None:
            return found
        return type("CudaMessagesOfVariant", (CudaMessages,), {"variant": name})

    Tiles.choose, FastTensorNet.chain_type = sized, chain  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Tiles.choose, FastTensorNet.chain_type = before  # type: ignore[method-assign]


def captured(case: Case) -> torch.cuda.CUDAGraph:
    """A run captured, after one that is not; `torch.cuda.graph` would collect garbage each time."""
    case.run()
    torch.cuda.synchronize()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        graph.capture_begin()
        case.run()
        graph.capture_end()
    torch.cuda.synchronize()
    return graph


def load_case(name: str, model: Potential, structures: Path) -> Case:
    """`Case`, also of a peptide in water, whose atoms are sorted along a curve like those of others."""
    read = kernels.load
    if name == PEPTIDE:
        numbers, positions, cell = systems.load(name)
        host = Batch.of(System.create(positions.astype("f4").astype("f8"), numbers, cell.astype("f4"), pbc=True))
        order = curve_order(host.positions, host.cell, host.pbc, host.system_index)
        host = replace(host, positions=host.positions[order], atomic_numbers=host.atomic_numbers[order])
        kernels.load = lambda *given: host
    try:
        return Case(name, model, structures)
    finally:
        kernels.load = read


def replay_ms(graph: Any, count: int) -> float:
    """A replay of many without a pause, ms."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    start.record()
    for _ in range(count):
        graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / count


def interleaved(graphs: Mapping[str, Any], count: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for turn in range(ROUNDS):
        names = list(graphs)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            times[name].append(replay_ms(graphs[name], count))
    return times


def message_times(graphs: Mapping[str, Any], layers: int) -> dict[str, dict[str, float]]:
    """Of the message kernels of each graph, ms, by one profile of replays."""
    repeats, wanted = 4, 2 * layers
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for graph in graphs.values():
            for _ in range(repeats):
                graph.replay()
            torch.cuda.synchronize()
    events = [event for event in profile.events() if event.name.startswith("messages")]
    events.sort(key=lambda event: event.time_range.start)
    if len(events) != len(graphs) * repeats * wanted:
        print(f"{len(events)} launches of message kernels instead of {len(graphs) * repeats * wanted}", flush=True)
        return {name: {} for name in graphs}
    found = {}
    for k, name in enumerate(graphs):
        mine = events[k * repeats * wanted : (k + 1) * repeats * wanted][wanted:]  # without the first replay
        back = sum(event.time_range.elapsed_us() for event in mine if "gradient" in event.name)
        both = sum(event.time_range.elapsed_us() for event in mine)
        times = dict(messages_ms=both - back, gradient_ms=back)
        found[name] = {key: round(value / (repeats - 1) / 1e3, 4) for key, value in times.items()}
    return found


def exact_forces(case: Case) -> torch.Tensor:
    wide = copy.deepcopy(case.model).double()
    blocked = in_blocks(wide.network)
    assert blocked is not None
    exact = evaluate(wide.with_network(blocked), case.batch, case.edges).forces
    assert exact is not None
    return exact


def check(case: Case, graph: Any, exact: torch.Tensor) -> dict[str, Any]:
    assert case.fast.buffers is not None
    forces = case.fast.buffers.forces
    graph.replay()
    first, same = forces.clone(), True
    for _ in range(10):
        forces.fill_(torch.nan)
        graph.replay()
        same &= bool(torch.equal(first, forces))
    return dict(force_error=float((first - exact).norm() / exact.norm()), same_bits=same)


def run_for_profiler(case: Case, names: list[str]) -> None:
    """Two evaluations of each variant, for ncu."""
    for name in names:
        with taken(name):
            engine.allocate(case.fast, case.batch, case.edges.capacity, stress=False)
            for _ in range(2):
                case.run()
            torch.cuda.synchronize()


def measure(case: Case, names: list[str]) -> list[dict[str, Any]]:
    """Kernels alone: a row for each variant. Those of as many slices share their buffers."""
    exact, graphs, found, kept = exact_forces(case), {}, {}, dict[int, Any]()
    for name in names:
        try:
            with taken(name):
                width = (VARIANTS[name] or {}).get("WIDTH", 4)
                if width not in kept:
                    engine.allocate(case.fast, case.batch, case.edges.capacity, stress=False)
                    assert case.fast.tile_kernels is not None, case.fast.outcomes
                    kept[width] = case.fast.buffers, case.fast.no_charge
                case.fast.buffers, case.fast.no_charge = kept[width]
                graphs[name] = captured(case)
                found[name] = check(case, graphs[name], exact)
        except Exception:
            print(f"{case.name}, {name} failed:\n{traceback.format_exc()}", flush=True)
            torch.cuda.synchronize()
    times = interleaved(graphs, 40 if case.batch.num_atoms < 5000 else 8 if case.batch.num_atoms < 50000 else 3)
    each, rows = message_times(graphs, len(case.fast.weights.layers)), []
    for name in graphs:
        row = dict(system=case.name, atoms=case.batch.num_atoms, edges=case.edges.capacity, by=name)
        row |= dict(ms=round(statistics.median(times[name]), 4), fastest_ms=round(min(times[name]), 4))
        rows.append(row | found[name] | each[name])
        print(json.dumps(rows[-1]), flush=True)
    return rows


def measure_steps(case: Case, rows: list[dict[str, Any]]) -> None:
    """Adds whole steps of Triton's kernels and of the two fastest others to the rows."""
    others = sorted((row for row in rows if row["by"] != TRITON), key=lambda row: row["ms"])[:2]
    chosen = [row for row in rows if row["by"] == TRITON] + others
    graphs, kept = {}, []
    for row in chosen:
        with taken(row["by"]):
            step = CapturedStep(case.model, case.host, mode="graph")
            result = step(case.host.positions.numpy())
        kept.append((step, result))
        graphs[row["by"]] = step.policy.graphs["host"]
    times = interleaved(graphs, 30 if case.batch.num_atoms < 5000 else 6)
    for row in chosen:
        row["step_ms"], row["step_fastest_ms"] = (round(f(times[row["by"]]), 4) for f in (statistics.median, min))
        print(json.dumps({key: row[key] for key in ("system", "by", "step_ms", "step_fastest_ms")}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=os.environ.get("RELEASED_POTENTIALS"))
    parser.add_argument("--systems", default=SYSTEMS)
    parser.add_argument("--steps", default=STEPS)
    parser.add_argument("--variants", default="|".join(VARIANTS), help="names, with | between")
    parser.add_argument("--compile", metavar="NAME", help="only compile a variant")
    parser.add_argument("--profiled", action="store_true", help="two evaluations of each variant, for ncu")
    parser.add_argument("--structures", type=Path, default=Path(__file__).parent / "structures")
    options = parser.parse_args()
    if options.compile:
        row_messages.code(**macros(options.compile))
        return
    models, rows = dict[str, Potential](), list[dict[str, Any]]()
    cases = {}
    for name in options.systems.split(","):
        try:
            potential = "aceff-1.1" if name == PEPTIDE else "organic-1"
            if potential not in models:
                path = released.find(None if options.folder is None else Path(options.folder), potential)
                assert path is not None, f"{potential} was not found in {options.folder}"
                models[potential] = load(path).requires_grad_(False).cuda()  # type: ignore[assignment, union-attr]
            case = load_case(name, models[potential], options.structures)
            if options.profiled:
                run_for_profiler(case, options.variants.split("|"))
                continue
            names = options.variants.split("|")
            if name in BEST_ONLY and rows:
                first = [row for row in rows if row["system"] == rows[0]["system"] and row["by"] != TRITON]
                names = [TRITON, *(row["by"] for row in sorted(first, key=lambda row: row["ms"])[:4])]
            found = [{"potential": potential, **row} for row in measure(case, names)]
            rows += found
            write("messages", rows)
            if name in options.steps.split(","):
                cases[name] = case, found
        except Exception:
            print(f"{name} failed:\n{traceback.format_exc()}", flush=True)
        case = None  # type: ignore[assignment]
    for case, found in cases.values():
        measure_steps(case, found)
        write("messages", rows)


if __name__ == "__main__":
    main()
