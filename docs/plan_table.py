"""The table of what runs, made by `torchmdx.engines.plan` for the page what_runs.md."""

from __future__ import annotations

from torchmdx import TensorNet2Config, TensorNetConfig
from torchmdx.engines.plan import Workload, machine_named, plan

CONFIGS = {"tensornet": TensorNetConfig, "tensornet2": TensorNet2Config}
CARDS = ("H100", "A100", "RTX 4090", "CPU")
ATOMS = (22, 49, 166, 600, 2489, 24_000)


def table_of(network: str) -> str:
    """In Markdown: a row for each number of atoms, a column for each machine. Raises ValueError for another network."""
    if network not in CONFIGS:
        raise ValueError(f"network must be one of {', '.join(CONFIGS)}, got {network!r}")
    lines = ["| atoms | " + " | ".join(CARDS) + " |", "|" + "---|" * (1 + len(CARDS))]
    for atoms in ATOMS:
        plans = [plan(CONFIGS[network](), [], Workload.usual(atoms), "float32", machine_named(card)) for card in CARDS]
        lines.append(f"| {atoms:,} | " + " | ".join(each.short for each in plans) + " |")
    return "\n".join(lines)
