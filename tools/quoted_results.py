"""The sentences in README.md and docs/ with numbers from benchmarks/results/; see update_tables.py."""

from __future__ import annotations

from collections.abc import Callable

from quoted_tables import CAPTURED, FOUR, NATIVE, NETWORK, OPENMM_ML, OURS, PEER, Row, value_of


def speedups(rows: list[Row]) -> list[float]:
    """The smallest and the largest."""
    found = sorted(row["speedup"] for row in rows if "speedup" in row)
    return found[:: len(found) - 1]


def ns_a_day(rows: list[Row]) -> list[float]:
    """Of the plugin, then of the peer."""
    return [row["ns_day"] for row in rows if NATIVE.items() <= row.items() and row["atoms"] in (22, 166, 2489)] + [
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
    chosen = (next(row for row in rows if {**OURS, "atoms": atoms}.items() <= row.items()) for atoms in (22, 166, 2489))
    return [1e3 * (row["wall_ms"] - row["ms"]) for row in chosen]


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
    (
        "docs/performance.md",
        "step_models",
        r"torchmd-net takes ([\d.]+) to ([\d.]+) times as long as torchmdx",
        speedups,
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
        "docs/dynamics.md",
        "dynamics",
        r"this is ([\d,]+) ns/day for one molecule and ([\d.]+) µs/day for all",
        lambda rows: [rows[0]["ns_day"], rows[-1]["ns_day"] / 1e3],
    ),
    (
        "docs/dynamics.md",
        "dynamics",
        r"Chignolin \(166 atoms\) runs at ([\d.]+) ns/day and DHFR \(2,489 atoms\) at ([\d.]+)",
        lambda rows: [rows[1]["ns_day"], rows[2]["ns_day"]],
    ),
    (
        "docs/performance_notes.md",
        "large",
        r"water with organic-1 take ([\d.]+) GB of an H200's memory, ([\d.]+) kB per atom",
        lambda rows: [rows[-1]["memory_GB"], rows[-1]["kB_per_atom"]],
    ),
    (
        "docs/openmm.md",
        "openmm",
        r"`native` is ([\d.]+), ([\d.]+) and ([\d.]+) times as fast as openmm-ml",
        times_openmm_ml,
    ),
]
