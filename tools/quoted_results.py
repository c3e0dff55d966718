"""The numbers in README.md and docs/ that come from benchmarks/results/, with their rows; see update_tables.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Row = dict[str, Any]


def value_of(recorded: list[Row], wanted: Row, name: str) -> Any:
    """The value in the row that matches; the fastest of several; None without a match."""
    found = [row for row in recorded if wanted.items() <= row.items()]
    return min(found, key=lambda row: row.get("ms", 0)).get(name) if found else None


OURS, PEER = {"by": "torchmdx"}, {"by": "torchmd-net"}
GRAPH, COMPILED, EAGER = ({**PEER, "mode": mode} for mode in ("graph", "compile", "eager"))
ONE, FOUR = {"members": 1}, {"members": 4}
NATIVE, PYTHON, OPENMM_ML = ({"transport": name} for name in ("native", "python", "openmm-ml 1.8, torchmd-net"))
STEP = {
    "torchmdx, ms": (OURS, "ms"),
    "ratio": (OURS, "speedup"),
    "force error": (OURS, "force_error"),
    "memory, GB": (OURS, "step_memory_GB"),
}
PEER_STEP = {"its force error": (PEER, "force_error"), "its memory, GB": (PEER, "memory_GB")}
# Tables with one structure per row: for each column, the keys of the quoted record besides the atoms, and the value.
BY_ATOMS: list[tuple[str, str, dict[str, tuple[Row, str]]]] = [
    (
        "docs/performance.md",
        "step",
        {
            **STEP,
            **PEER_STEP,
            "torchmd-net 3.1.0, ms": (PEER, "ms"),
            "its mode": (PEER, "mode"),
            "target, ms": (OURS, "asked_ms"),
            "share of roofline": (OURS, "roofline_share"),
        },
    ),
    (
        "docs/performance.md",
        "tensornet2",
        {
            **STEP,
            **PEER_STEP,
            "CUDA graph, ms": (GRAPH, "ms"),
            "torch.compile, ms": (COMPILED, "ms"),
            "eager, ms": (EAGER, "ms"),
        },
    ),
    (
        "docs/performance.md",
        "matgl",
        {
            "torchmdx, ms": (OURS, "ms"),
            "matgl, ms": ({"by": "matgl"}, "ms"),
            "ratio": (OURS, "speedup"),
            "force error": (OURS, "force_error"),
        },
    ),
    (
        "docs/performance.md",
        "matgl_compounds",
        {
            "torchmdx, ms": (OURS, "ms"),
            "matgl, ms": ({"by": "matgl"}, "ms"),
            "times as fast": (OURS, "speedup"),
            "force error": (OURS, "force_error"),
        },
    ),
    (
        "docs/performance.md",
        "kernels",
        {"ms": ({}, "ms"), "energy only, ms": ({}, "energy_only_ms"), "edges": ({}, "edges")},
    ),
    (
        "docs/performance.md",
        "first_step",
        {
            "in parallel": ({"way": "side by side"}, "setup_s"),
            "one after the other": ({"way": "one after the other"}, "setup_s"),
            "cached on disk": ({"way": "on disk"}, "setup_s"),
            "of that, the capture": ({"way": "on disk"}, "capture_s"),
        },
    ),
    (
        "docs/performance.md",
        "coulomb",
        {
            "without Coulomb, ms": ({}, "ms_without"),
            "with it, ms": ({}, "ms"),
            "share of Coulomb": ({}, "share"),
            "force error at capture": ({}, "force_error"),
        },
    ),
    (
        "docs/ensembles.md",
        "ensemble",
        {
            "one, ms": (ONE, "ms"),
            "four, ms": (FOUR, "ms"),
            "times one": (FOUR, "times_single"),
            "four in turn, ms": (FOUR, "in_turn_ms"),
            "memory of one, GB": (ONE, "step_memory_GB"),
            "of four, GB": (FOUR, "step_memory_GB"),
        },
    ),
    (
        "docs/openmm.md",
        "openmm",
        {
            "native": (NATIVE, "ns_day"),
            "target": (NATIVE, "asked_ns_day"),
            "python": (PYTHON, "ns_day"),
            "openmm-ml 1.8 with torchmd-net 3.1.0": (OPENMM_ML, "ns_day"),
            "native, µs beyond the bare replay": (NATIVE, "beyond_us"),
            "python, µs beyond": (PYTHON, "beyond_us"),
        },
    ),
]
SIZES = {str(size): {"batch": size} for size in (8, 32, 128, 512)}
CPU_COLUMNS = {
    "22 atoms": {"what": "tensornet", "atoms": 22},
    "166": {"what": "tensornet", "atoms": 166},
    "648, water": {"what": "tensornet", "atoms": 648},
    "2,489": {"what": "tensornet", "atoms": 2489},
    "TensorNet2, 166": {"what": "tensornet2", "atoms": 166},
    "training, 8 x 22": {"what": "training", "system": "8"},
    "32 x 22": {"what": "training", "system": "32"},
}
CAPTURED, NETWORK = {"by": "torchmdx float32"}, {"by": "torchmd-net 3.1.0"}
# Tables with one measurement per row: the records quoted by columns and rows.
BY_MEASUREMENT: list[tuple[str, str, dict[str, Row], dict[str, tuple[Row, str]]]] = [
    (
        "docs/performance.md",
        "training",
        SIZES,
        {
            "captured, float32": (CAPTURED, "ms"),
            "captured, tf32": ({"by": "torchmdx tf32"}, "ms"),
            "captured, bf16 in linear maps": ({"by": "torchmdx bf16"}, "ms"),
            "eager, float32": ({"by": "torchmdx float32, not recorded"}, "ms"),
            "torchmd-net 3.1.0, float32": (NETWORK, "ms"),
            "target": (CAPTURED, "asked_ms"),
            "memory, GB": (CAPTURED, "gb"),
            "torchmd-net's memory, GB": (NETWORK, "gb"),
            "reading, padding and copying a batch, alone": ({"by": "reading and batching alone"}, "ms"),
        },
    ),
    (
        "docs/performance.md",
        "aspirin",
        {"torchmdx": {"by": "torchmdx"}, "torchmd-net 3.1.0": {"by": "torchmd-net 3.1.0"}},
        {
            "whole command, s": ({}, "seconds"),
            "forces, meV/Å": ({}, "force_mae_mev_per_angstrom"),
            "energy, meV": ({}, "energy_mae_mev"),
        },
    ),
    (
        "docs/performance.md",
        "cpu",
        CPU_COLUMNS,
        {
            "torchmdx": ({**OURS, "busy": False}, "ms"),
            "torchmdx, C library defaults": ({"by": "libraries as they come", "busy": False}, "ms"),
            "torchmd-net 3.1.0": ({**PEER, "busy": False}, "ms"),
        },
    ),
    (
        "docs/openmm.md",
        "openmm_mixed",
        {
            "force field alone": {"transport": "none"},
            "native": {"transport": "native"},
            "python": {"transport": "python"},
            "openmm-ml 1.8 with torchmd-net 3.1.0": {"transport": "peer"},
        },
        {"ns/day": ({}, "ns_day"), "ms a step": ({}, "step_ms")},
    ),
]


def speedups(rows: list[Row]) -> list[float]:
    """The smallest and the largest."""
    found = sorted(row["speedup"] for row in rows if "speedup" in row)
    return found[:: len(found) - 1]


def ns_a_day(rows: list[Row]) -> list[float]:
    """Of the plugin, then of the peer."""
    return [row["ns_day"] for row in rows if NATIVE.items() <= row.items() and row["asked_ns_day"]] + [
        row["ns_day"] for row in rows if OPENMM_ML.items() <= row.items()
    ]


def times_openmm_ml(rows: list[Row]) -> list[float]:
    """Speedup over openmm-ml at 22, 166 and 2,489 atoms."""
    both = ns_a_day(rows)
    return [ours / peer for ours, peer in zip(both[:3], both[3:], strict=True)]


def empty_steps(rows: list[Row]) -> list[float]:
    """Minimum and maximum step time of OpenMM without a potential, µs."""
    found = sorted(1e3 * row["step_ms"] for row in rows if row["transport"] == "none")
    return found[:: len(found) - 1]


def setup_times(rows: list[Row]) -> list[float]:
    """Minimum and maximum, with compiled kernels on disk, s."""
    found = sorted(row["setup_s"] for row in rows if row["transport"] in ("native", "python"))
    return found[:: len(found) - 1]


def beyond_replay(rows: list[Row]) -> list[float]:
    """µs from NumPy to NumPy beyond the replay, of 22, 166 and 2,489 atoms."""
    return [1e3 * (row["wall_ms"] - row["ms"]) for row in rows if OURS.items() <= row.items()][:3]


def times_single(rows: list[Row]) -> list[float]:
    """Ratio of the time of four members to that of one."""
    return [row["times_single"] for row in rows if FOUR.items() <= row.items()]


def step_times(atoms: int) -> Callable[[list[Row]], list[float]]:
    """ms of both programs."""
    return lambda rows: [value_of(rows, {**side, "atoms": atoms}, "ms") for side in (OURS, PEER)]


def training_times(frames: int) -> Callable[[list[Row]], list[float]]:
    """ms of both programs."""
    return lambda rows: [value_of(rows, {**side, "batch": frames}, "ms") for side in (CAPTURED, NETWORK)]


def times_cpu(rows: list[Row]) -> list[float]:
    """Speedup over torchmd-net at 166, 648 and 2,489 atoms."""
    columns = [{"what": "tensornet", "busy": False, "atoms": atoms} for atoms in (166, 648, 2489)]
    return [value_of(rows, {**it, **PEER}, "ms") / value_of(rows, {**it, **OURS}, "ms") for it in columns]


def searches(ours: bool, *sizes: int) -> Callable[[list[Row]], list[float]]:
    """The fastest search at each size, on a GPU, without reuse of the previous step."""

    def fastest(rows: list[Row]) -> list[float]:
        mine = [row for row in rows if row["by"].startswith("torchmdx") == ours]
        mine = [row for row in mine if "CPU" not in row["by"] and "skin" not in row["by"]]
        return [min(row["ms"] for row in mine if row["atoms"] == atoms) for atoms in sizes]

    return fastest


def multiple_steps(outer: float) -> Callable[[list[Row]], list[float]]:
    """Evaluations and CPU time per ps, fluctuation and size of the drift, at a time step of the potential in fs."""
    names = ("evaluations_per_ps", "seconds_per_ps", "fluctuation_kj_per_mol", "drift_kj_per_mol_ps")
    return lambda rows: [abs(value_of(rows, {"outer_fs": outer}, name)) for name in names]


# Page, record, a sentence or a table row, and the source of its numbers.
FIRST = r"torchmdx is ([\d.]+) to ([\d.]+) times as fast as torchmd-net"
SEARCHED = (648, 3000, 24_000, 98_304, 999_000)
CELL = r" \| ([\d.,]+)"
SENTENCES: list[tuple[str, str, str, Callable[[list[Row]], list[float]]]] = [
    ("README.md", "step", FIRST, speedups),
    *(
        (
            "docs/openmm.md",
            "openmm_multiple_steps",
            rf"\| {outer:g} fs{CELL}{CELL}{CELL} \| -?([\d.]+)",
            multiple_steps(outer),
        )
        for outer in (0.5, 1.0, 1.5, 2.0)
    ),
    ("docs/index.md", "step", FIRST, speedups),
    ("docs/performance.md", "step", FIRST, speedups),
    ("README.md", "step", rf"energy and forces, DHFR, 2,489 atoms, ms{CELL}{CELL}", step_times(2489)),
    (
        "README.md",
        "openmm",
        rf"OpenMM, alanine dipeptide, 22 atoms, ns/day at 1 fs{CELL}{CELL}",
        lambda rows: ns_a_day(rows)[::3],
    ),
    ("README.md", "training", rf"training step, 32 frames of 22 atoms, ms{CELL}{CELL}", training_times(32)),
    ("README.md", "search", rf"neighbour list, water, 24,000 atoms, ms{CELL}", searches(True, 24_000)),
    (
        "README.md",
        "search",
        rf"neighbour list, water, 24,000 atoms, ms \| [\d.]+{CELL}",
        searches(False, 24_000),
    ),
    (
        "docs/performance.md",
        "tensornet2",
        r"TensorNet2 is ([\d.]+) to ([\d.]+) times as fast as torchmd-net",
        speedups,
    ),
    (
        "docs/performance.md",
        "step",
        r"adds ([\d.]+) µs at 22 atoms, ([\d.]+) at 166 and ([\d.]+) at 2,489",
        beyond_replay,
    ),
    ("docs/performance.md", "search", rf"\| torchmdx, ms{CELL * 5} ", searches(True, *SEARCHED)),
    (
        "docs/performance.md",
        "search",
        rf"\| best of torchmd-net and nvalchemi-toolkit-ops, ms{CELL * 5} ",
        searches(False, *SEARCHED),
    ),
    (
        "docs/performance.md",
        "cpu",
        r"([\d.]+) times as fast as torchmd-net at 166 atoms, ([\d.]+) times at 648 and ([\d.]+) times at 2,489",
        times_cpu,
    ),
    (
        "docs/performance.md",
        "ensemble",
        r"take ([\d.]+) times as long as one at 22 atoms, ([\d.]+) times at 166 and ([\d.]+) times at 2,489",
        times_single,
    ),
    (
        "docs/performance.md",
        "training_gpus",
        r"Two GPUs process ([\d.]+) times the frames of one",
        lambda rows: [row["times_one"] for row in rows if "times_one" in row],
    ),
    (
        "docs/openmm.md",
        "openmm",
        r"`native` is ([\d.]+), ([\d.]+) and ([\d.]+) times as fast as openmm-ml",
        times_openmm_ml,
    ),
]
