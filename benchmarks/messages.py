"""Times messages of many atoms in CUDA C++ and in Triton, interleaved in one process, on an H100 or H200.

    python -m benchmarks.messages [FOLDER] [--systems NAME,NAME]

ms, fastest_ms: all kernels with forces, replayed from a CUDA graph without the search, median and fastest of rounds in
which both take turns; messages_ms, gradient_ms: of all layers, by a profile of replays. force_error: relative, against
the exact model in float64, in blocks. same_bits: of repeated replays. FOLDER (or $RELEASED_POTENTIALS) has AceFF-1.1,
which evaluates the peptide in water; the other systems take organic-1. Results go to messages.json.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import os
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import kernels, released_systems, systems
from benchmarks.kernels import Case
from benchmarks.record import write
from torchmdx import Batch, Potential, System, load
from torchmdx.engines.gpu import engine
from torchmdx.engines.gpu.atom_tiles import TileChain
from torchmdx.engines.gpu.chain_walks import ChainWalks
from torchmdx.engines.gpu.tensornet import FastTensorNet
from torchmdx.evaluation.blocks import in_blocks
from torchmdx.evaluation.derivatives import evaluate
from torchmdx.step.atom_order import curve_order

SYSTEMS = "water24000,dhfr,batch1024,peptide_in_water,water98304"
PEPTIDE = "peptide_in_water"
ROUNDS = 7
TRITON = "Triton"
CUDA = "CUDA C++"


class TritonMessages(TileChain):
    """The launches of many atoms with messages in Triton."""

    _walk_messages = ChainWalks._walk_messages
    _walk_messages_gradient = ChainWalks._walk_messages_gradient


CHAINS = {TRITON: TritonMessages, CUDA: TileChain}


@contextlib.contextmanager
def taken(by: str) -> Iterator[None]:
    """Evaluations that are captured within have these messages."""
    before = chain_type = FastTensorNet.chain_type

    def chain(self: FastTensorNet, buffers: Any) -> Any:
        found = chain_type(self, buffers)
        return CHAINS[by] if found is TileChain else found

    FastTensorNet.chain_type = chain  # type: ignore[method-assign]
    try:
        yield
    finally:
        FastTensorNet.chain_type = before  # type: ignore[method-assign]


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
        assert cell is not None
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
    """Of the message kernels of each graph, ms: medians of replays in one profile."""
    repeats, wanted = 6, 2 * layers
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
        forward, backward = [], []
        for first in range((k * repeats + 1) * wanted, (k + 1) * repeats * wanted, wanted):  # without the first replay
            mine = events[first : first + wanted]
            back = sum(event.time_range.elapsed_us() for event in mine if "gradient" in event.name)
            backward.append(back / 1e3)
            forward.append(sum(event.time_range.elapsed_us() for event in mine) / 1e3 - backward[-1])
        times = dict(messages_ms=statistics.median(forward), gradient_ms=statistics.median(backward))
        found[name] = {key: round(value, 4) for key, value in times.items()}
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


def measure(case: Case) -> list[dict[str, Any]]:
    """Kernels alone: a row for each."""
    exact, graphs, found = exact_forces(case), {}, {}
    engine.allocate(case.fast, case.batch, case.edges.capacity, stress=False)
    assert case.fast.tile_kernels is not None, case.fast.outcomes
    for by in CHAINS:
        with taken(by):
            graphs[by] = captured(case)
            found[by] = check(case, graphs[by], exact)
    times = interleaved(graphs, 40 if case.batch.num_atoms < 5000 else 8 if case.batch.num_atoms < 50000 else 3)
    each, rows = message_times(graphs, len(case.fast.weights.layers)), []
    for by in graphs:
        row = dict(system=case.name, atoms=case.batch.num_atoms, edges=case.edges.capacity, by=by)
        row |= dict(ms=round(statistics.median(times[by]), 4), fastest_ms=round(min(times[by]), 4))
        rows.append(row | found[by] | each[by])
        print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=os.environ.get("RELEASED_POTENTIALS"))
    parser.add_argument("--systems", default=SYSTEMS)
    parser.add_argument("--structures", type=Path, default=Path(__file__).parent / "structures")
    options = parser.parse_args()
    folder = None if options.folder is None else Path(options.folder)
    models, rows = dict[str, Potential](), list[dict[str, Any]]()
    for name in options.systems.split(","):
        potential = "aceff-1.1" if name == PEPTIDE else "organic-1"
        if potential not in models:
            path = released_systems.find(folder, potential)
            if path is None:
                print(f"{name}: {potential} was not found in {folder}", flush=True)
                continue
            made = load(path)
            assert isinstance(made, Potential)
            models[potential] = made.requires_grad_(False).cuda()
        case = load_case(name, models[potential], options.structures)
        rows += [{"potential": potential, **row} for row in measure(case)]
        write("messages", rows)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
