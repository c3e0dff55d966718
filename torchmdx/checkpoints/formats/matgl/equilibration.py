"""What a QET of matgl has in addition to its TensorNet: settings and tensors of the charge equilibration."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from torchmdx.checkpoints.formats.matgl.renamed_tensors import StateDict, by_atomic_number
from torchmdx.checkpoints.formats.reading import Report
from torchmdx.models.qet import QETConfig
from torchmdx.models.tensornet import TensorNetConfig

MATGL_COULOMB = 14.399645478425668  # eV Å, with which matgl trains
# matgl computes with constants of its own that it also stores.
_CONSTANTS = ("model.elec_pot.pi", "model.elec_pot.sqrt2")
_MAPS = (0, 2, 4)  # of networks of three linear maps


def qet_config(config: TensorNetConfig, settings: dict[str, Any], report: Report) -> QETConfig:
    """The configuration of a QET from that of its TensorNet and the settings in the file."""
    by_element = not settings.get("is_hardness_envs", False)
    report.read.append(
        "linear charge equilibration, with the hardness of " + ("elements" if by_element else "environments")
    )
    own = "neighbours' charges" if config.messages == "source" else "an atom's own charge"
    report.read.append(f"electrostatic potential from {own}, within the cutoff")
    hardness = "element" if by_element else "environment"
    return QETConfig(**asdict(config), hardness=hardness, coulomb=MATGL_COULOMB)


def rename_equilibration(
    state: StateDict, config: QETConfig, renamed: dict[str, Tensor], numbers: list[int]
) -> dict[str, Tensor]:
    """All tensors of a QET: those of its TensorNet, which were renamed, and the others."""
    new = {name.replace("network.", "network.tensornet.", 1): value for name, value in renamed.items()}
    networks = {"electronegativity": "chi_readout"}
    prefix = "network.equilibration"
    if config.hardness == "element":
        rows = state.take("model.hardness_readout")[:, None]
        new[f"{prefix}.element_hardness.weight"] = by_atomic_number(rows, numbers, config, "hardness_readout", 1.0)
    else:
        networks["hardness"] = "hardness_readout"
    for kind in ("weight", "bias"):
        new[f"network.norm.{kind}"] = state.take(f"model.norm.{kind}")
        for ours, theirs in networks.items():
            for index in _MAPS:
                new[f"{prefix}.{ours}.{index}.{kind}"] = state.take(f"model.{theirs}.layers.{index}.{kind}")
    widths = state.take("model.sigma")
    if not bool(torch.all(widths > 0)):
        raise ValueError(f"{state.origin!r}: model.sigma must be > 0 Å, got {float(widths.min())}")
    new[f"{prefix}.widths"] = by_atomic_number(widths, numbers, config, "sigma", 1.0)
    for name in _CONSTANTS:
        state.tensors.pop(name, None)
    return new
