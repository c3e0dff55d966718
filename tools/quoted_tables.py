"""The tables in README.md and docs/ that come from benchmarks/results/, with their rows; see update_tables.py."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]


def value_of(recorded: list[Row], wanted: Row, name: str) -> Any:
    """The value in the row that matches; the fastest of several; None without a match. "a.b": of an object in it."""
    found = [row for row in recorded if wanted.items() <= row.items()]
    value: Any = min(found, key=lambda row: row.get("ms", 0)) if found else {}
    for part in name.split("."):
        value = value.get(part, {})
    return None if value == {} else value


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
PEER_STEP = {"torchmd-net force error": (PEER, "force_error"), "torchmd-net memory, GB": (PEER, "memory_GB")}
# Tables with one structure per row: for each column, the keys of the quoted record besides the atoms, and the value.
BY_ATOMS: list[tuple[str, str, dict[str, tuple[Row, str]]]] = [
    (
        "docs/lammps.md",
        "lammps",
        {
            "one GPU, ms": ({"ranks": 1}, "ms"),
            "pair style, ms": ({"ranks": 1}, "pair_ms"),
            "two GPUs, ms": ({"ranks": 2, "gpus": 2}, "ms"),
            "pair style on two, ms": ({"ranks": 2, "gpus": 2}, "pair_ms"),
            "communication, ms": ({"ranks": 2, "gpus": 2}, "communication_ms"),
            "speedup": ({"ranks": 2, "gpus": 2}, "speedup"),
        },
    ),
    (
        "docs/performance.md",
        "step",
        {
            **STEP,
            **PEER_STEP,
            "torchmd-net 3.1.0, ms": (PEER, "ms"),
            "torchmd-net mode": (PEER, "mode"),
            "share of roofline": (OURS, "roofline_share"),
        },
    ),
    (
        "docs/performance.md",
        "step",
        {
            "tensor cores": (OURS, "floors_ms.tensor cores"),
            "CUDA cores": (OURS, "floors_ms.CUDA cores"),
            "HBM": (OURS, "floors_ms.HBM"),
            "L1": (OURS, "floors_ms.L1"),
            "largest / step": (OURS, "roofline_share"),
            "sum / step": (OURS, "floors_sum_share"),
        },
    ),
    (
        "docs/performance.md",
        "engines",
        {
            f"{named}, {way}, ms": ({"by": by}, f"{key}_ms")
            for named, by in (("reference", "exact"), ("pairs", "pairs"), ("fused", "fused"))
            for way, key in (("launched", "launched"), ("graph", "graph"))
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
        "ase_md",
        {
            "VelocityVerlet step, ms": ({**OURS, "integrator": "VelocityVerlet"}, "ms"),
            "Langevin step, ms": ({**OURS, "integrator": "Langevin"}, "ms"),
            "calculator, ms": (OURS, "calculator_ms"),
            "replay, ms": (OURS, "replay_ms"),
        },
    ),
    (
        "docs/parallel.md",
        "two_gpus",
        {
            "one GPU, ms": ({"gpus": 1}, "ms"),
            "two GPUs, ms": ({"gpus": 2}, "ms"),
            "speedup": ({"gpus": 2}, "speedup"),
        },
    ),
    (
        "docs/performance.md",
        "first_step",
        {
            "on a fresh machine": ({"way": "side by side"}, "setup_s"),
            "cached on disk": ({"way": "on disk"}, "setup_s"),
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
            "ratio": (FOUR, "times_single"),
            "four one by one, ms": (FOUR, "in_turn_ms"),
            "memory of one, GB": (ONE, "step_memory_GB"),
            "memory of four, GB": (FOUR, "step_memory_GB"),
        },
    ),
    (
        "docs/openmm.md",
        "openmm",
        {
            "native": (NATIVE, "ns_day"),
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
MODELS = {
    f"{layers} x {channels}": {"num_layers": layers, "num_channels": channels}
    for layers in (0, 1, 2)
    for channels in (64, 128)
}
MODELS_ATOMS = {
    "alanine dipeptide, 22 atoms": 22,
    "testosterone, 49": 49,
    "chignolin, 166": 166,
    "DHFR, 2,489": 2489,
    "Factor IX, 5,807": 5807,
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
            "memory, GB": (CAPTURED, "gb"),
            "torchmd-net's memory, GB": (NETWORK, "gb"),
            "reading, padding and copying a batch, alone": ({"by": "reading and batching alone"}, "ms"),
        },
    ),
    (
        "docs/performance.md",
        "step_models",
        MODELS,
        {name: ({**OURS, "atoms": atoms}, "ms") for name, atoms in MODELS_ATOMS.items()}
        | {f"torchmd-net, {atoms:,}": ({**PEER, "atoms": atoms}, "ms") for atoms in MODELS_ATOMS.values()},
    ),
    (
        "docs/performance.md",
        "pool",
        {
            "`StepPool`": {"by": "pool"},
            "one step of the largest size": {"by": "one size"},
            "`BatchPool`, 64 at a time": {"by": "batches"},
            "torchmd-net 3.1.0": {"by": "torchmd-net"},
        },
        {"all rounds, with captures": ({}, "molecules_s"), "the last round": ({}, "last_round_s")},
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
        "docs/performance.md",
        "search_batches",
        {f"{count:,}": {"systems": count} for count in (1, 4, 16, 64, 256, 1024)},
        {
            "torchmdx, all pairs, ms": ({"by": "torchmdx triton_brute_force"}, "ms"),
            "torchmdx, cells, ms": ({"by": "torchmdx triton_cell_list"}, "ms"),
            "torchmd-net, all pairs, ms": ({"by": "torchmd-net brute"}, "ms"),
            "torchmd-net, cells, ms": ({"by": "torchmd-net cell"}, "ms"),
        },
    ),
    (
        "docs/torch_sim.md",
        "torch_sim",
        {"NVE": {"integrator": "nve"}, "NVT, Langevin": {"integrator": "nvt_langevin"}},
        {name: ({"model": name}, "overhead") for name in ("torchmdx", "Lennard-Jones of torch-sim")},
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
        {"ns/day": ({}, "ns_day"), "ms per step": ({}, "step_ms")},
    ),
    (
        "docs/openmm.md",
        "openmm_embeddings",
        {
            "22 atoms": {"row": "plain"},
            "18 atoms and a link atom": {"row": "links"},
            "22 atoms, TensorNet2": {"row": "charged"},
        },
        {"native, ns/day": (NATIVE, "ns_day"), "python, ns/day": (PYTHON, "ns_day")},
    ),
    (
        "docs/dynamics.md",
        "dynamics",
        {"one molecule of 22 atoms": {"replicas": 1}, "1,024 of them": {"replicas": 1024}},
        {"a step, ms": ({}, "step_ms"), "the evaluation alone, ms": ({}, "evaluation_ms")},
    ),
]
