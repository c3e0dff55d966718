"""The table of what runs, made by `torchmdx.engines.plan` for the page what_runs.md."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torchmdx import TensorNet2Config, TensorNetConfig
from torchmdx.engines.plan import Workload, machine_named, plan
from torchmdx.models.priors.coulomb import CoulombConfig
from torchmdx.models.qet import QETConfig

CONFIGS = {"tensornet": TensorNetConfig, "tensornet2": TensorNet2Config}
# Columns, and the machines that all get the same.
COLUMNS = {
    "H100, H200": ("H100", "H200"),
    "A100, B200, RTX 3090, 4090, 5090": ("A100", "B200", "RTX 3090", "RTX 4090", "RTX 5090"),
    "CPU": ("CPU",),
}
ATOMS = (22, 49, 166, 600, 2489, 24_000)
GATED: dict[str, Any] = dict(
    radial_basis="bessel", num_head_layers=2, head="gated", self_message=False, readout_activation=False,
    charge_factor=False,
)  # fmt: skip
# (network, priors, molecules, periodic structures with their stress), in atoms.
RELEASED: dict[str, tuple[Any, list[Any], tuple[int, ...], tuple[int, ...]]] = {
    "organic-1": (TensorNetConfig(), [], (22, 166), ()),
    "AceFF-1.1": (TensorNetConfig(num_layers=1), [], (22, 166, 2489), (2257,)),
    "AceFF-2.0": (TensorNet2Config(num_head_layers=1), [CoulombConfig(periodic="auto")], (15, 22, 166, 2489), (2257,)),
    "TensorNet-MatPES": (TensorNetConfig(num_radial=3, **GATED), [], (), (8, 216)),
    "TensorNet-ANI-1x": (TensorNetConfig(num_channels=64, num_radial=3, messages="target", **GATED), [], (22,), ()),
    "QET-MatQ": (QETConfig(num_channels=64, num_layers=3, num_radial=9, messages="target", **GATED), [], (), (8,)),
}


def table_of(network: str) -> str:
    """In Markdown: a row for each number of atoms, a column for each machine. Raises ValueError for another network."""
    if network == "released":
        return table_of_released()
    if network not in CONFIGS:
        raise ValueError(f"network must be one of {', '.join(CONFIGS)}, released, got {network!r}")
    rows = {f"{atoms:,}": short(CONFIGS[network](), [], Workload.usual(atoms)) for atoms in ATOMS}
    return markdown("atoms", rows)


def table_of_released() -> str:
    """A row for each potential and number of atoms."""
    rows = {}
    for name, (config, priors, molecules, crystals) in RELEASED.items():
        for atoms in (*molecules, *crystals):
            cutoff = max([config.cutoff, *(prior.cutoff for prior in priors if atoms in crystals)])
            work = replace(Workload.usual(atoms, cutoff), stress=atoms in crystals, periodic=atoms in crystals)
            rows[f"{name}, {atoms:,} atoms{', periodic' if atoms in crystals else ''}"] = short(config, priors, work)
    return markdown("potential", rows)


def short(config: Any, priors: list[Any], work: Workload) -> list[str]:
    """What runs in each column. Raises ValueError where its machines differ."""
    found: list[str] = []
    for column, cards in COLUMNS.items():
        plans = [plan(config, priors, work, "float32", machine_named(card)) for card in cards]
        texts = {each.short or each.why for each in plans}
        if len(texts) > 1:
            raise ValueError(f"all of {column} must have the same plan for {work.atoms:,} atoms, got {sorted(texts)}")
        found += texts
    return found


def markdown(corner: str, rows: dict[str, list[str]]) -> str:
    """A table; rows: the cells of each."""
    lines = [f"| {corner} | " + " | ".join(COLUMNS) + " |", "|" + "---|" * (1 + len(COLUMNS))]
    return "\n".join([*lines, *(f"| {name} | " + " | ".join(cells) + " |" for name, cells in rows.items())])
