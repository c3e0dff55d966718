"""Conversion of a torchmd-net checkpoint's state_dict to the tensors of a Potential."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchmdx.checkpoints.formats.reading import Report, UnsupportedCheckpoint
from torchmdx.checkpoints.formats.torchmdnet.container import Content
from torchmdx.models.potential import Potential
from torchmdx.models.tensornet import TensorNetConfig
from torchmdx.models.tensornet2 import TensorNet2Config

HEAD = "output_model.output_network.layers"


class Remaining:
    """The tensors of a checkpoint that have not been read yet, so that none is silently ignored."""

    def __init__(self, content: Content, report: Report) -> None:
        self.origin, self.report = content.origin, report
        self.num_tensors = len(content.weights)
        weights = {re.sub(r"^model\.", "", name): value for name, value in content.weights.items()}
        self.weights = {
            re.sub(r"^output_model\.output_network\.(\d+)\.", rf"{HEAD}.\1.", name): value
            for name, value in weights.items()
        }
        self.old_names = self.weights.keys() != weights.keys()
        if self.old_names:
            report.remapped.append("names of the head's layers: written before torchmd-net renamed them")
        self.to_float32()

    def to_float32(self) -> None:
        """Converts half precision to float32, which every device supports."""
        halves = [name for name, value in self.weights.items() if value.dtype in (torch.float16, torch.bfloat16)]
        for name in halves:
            self.weights[name] = self.weights[name].float()
        if halves:
            self.report.remapped.append(f"{len(halves)} tensors of half precision to float32")

    def take(self, name: str) -> Tensor:
        if name not in self.weights:
            raise ValueError(f"{self.origin!r} lacks the tensor {name}")
        return self.weights.pop(name)

    def drop(self, *names: str) -> None:
        """Removes tensors that are not used, if present."""
        for name in names:
            self.weights.pop(name, None)

    def num_head_layers(self) -> int:
        """Number of layers of the head between its first and last."""
        indices = {int(match[1]) for name in self.weights if (match := re.match(rf"{re.escape(HEAD)}\.(\d+)\.", name))}
        return max(0, max(indices, default=2) // 2 - 1)

    def require_nothing_left(self) -> None:
        if self.weights:
            raise UnsupportedCheckpoint(f"{self.origin!r}: unsupported tensors {', '.join(sorted(self.weights))}")


def translate(state: Remaining, config: TensorNetConfig, options: dict[str, Any]) -> dict[str, Tensor]:
    """The tensors under torchmdx's names, without the reference energies."""
    take: Callable[[str], Tensor] = lambda name: state.take(f"representation_model.{name}")  # noqa: E731
    embedding = "tensor_embedding"
    # A default cell that every structure overrides; absent from old checkpoints.
    state.drop("representation_model.distance.box", "output_model.distance.box")
    basis = {"expnorm": ("means", "betas"), "gauss": ("offset", "coeff")}[config.radial_basis]
    ours = {"means": "means", "betas": "betas", "offset": "offsets", "coeff": "coefficient"}
    new = {f"network.basis.{ours[name]}": take(f"distance_expansion.{name}") for name in basis}
    for kind in ("weight", "bias"):
        parts = [take(f"{embedding}.distance_proj{k}.{kind}") for k in (1, 2, 3)]
        new[f"network.embedding.filters.{kind}"] = torch.cat(parts)
        new[f"network.embedding.pair.{kind}"] = take(f"{embedding}.emb2.{kind}")
        new[f"network.embedding.norm.{kind}"] = take(f"{embedding}.init_norm.{kind}")
        new[f"network.readout.{kind}"] = take(f"linear.{kind}")
        new[f"network.norm.{kind}"] = take(f"out_norm.{kind}")
        for theirs, index in ((0, 0), (1, 2)):
            new[f"network.embedding.gate.{index}.{kind}"] = take(f"{embedding}.linears_scalar.{theirs}.{kind}")
        for index in range(0, 2 * config.num_head_layers + 3, 2):
            new[f"head.network.{index}.{kind}"] = state.take(f"{HEAD}.{index}.{kind}")
        for layer in range(config.num_layers):
            for theirs, index in ((0, 0), (1, 2), (2, 4)):
                new[f"network.layers.{layer}.filters.{index}.{kind}"] = take(
                    f"layers.{layer}.linears_scalar.{theirs}.{kind}"
                )
    elements = take(f"{embedding}.emb.weight")
    beyond_nature = len(elements) == options["max_z"] > config.max_z + 1
    new["network.embedding.elements.weight"] = elements[: config.max_z + 1] if beyond_nature else elements
    for k, part in enumerate(("scalar", "vector", "symmetric")):
        new[f"network.embedding.mix.{part}.weight"] = take(f"{embedding}.linears_tensor.{k}.weight")
        for layer in range(config.num_layers):
            tensors = f"layers.{layer}.linears_tensor"
            new[f"network.layers.{layer}.mix_in.{part}.weight"] = take(f"{tensors}.{k}.weight")
            new[f"network.layers.{layer}.mix_out.{part}.weight"] = take(f"{tensors}.{k + 3}.weight")
    if isinstance(config, TensorNet2Config):
        new |= _charges(take, config)
    new["scale"] = state.take("std").double()
    new["shift"] = state.take("mean").double()
    return new


def _charges(take: Callable[[str], Tensor], config: TensorNet2Config) -> dict[str, Tensor]:
    """The networks that predict charges, after the embedding and after each layer."""
    new = {}
    for index in range(config.num_layers + 1):
        theirs = "charge_predict_0" if index == 0 else f"charge_predicts.{index - 1}"
        for kind in ("weight", "bias"):
            new[f"network.charges.{index}.norm.{kind}"] = take(f"{theirs}.q_norm.{kind}")
            for layer in (0, 2, 4):
                new[f"network.charges.{index}.network.{layer}.{kind}"] = take(f"{theirs}.q_mlp.layers.{layer}.{kind}")
    return new


def arrange_rows(potential: Potential, options: dict[str, Any], old_names: bool, report: Report) -> None:
    """Reorders the rows of a file with the old layout, and reports which layout was read.

    Since March 2026 torchmd-net orders the rows of the last filter layer by part, then channel, as torchmdx does; until
    then it ordered them by channel, then part. No file says so. From January 2024 until shortly before the change,
    files have the setting `check_errors`. Those of 2023 have neither this nor `static_shapes`, which came with it and
    is in every later file. The head has its old names in files from before April 2024.

    Args:
        options: Of the file alone.
        old_names: Of the layers of the head.
    """
    if "check_errors" in options:
        reason = "'check_errors' in its settings"
    elif "static_shapes" not in options:
        reason = "no 'static_shapes' in its settings"
    elif old_names:
        reason = "old names of the head's layers"
    else:
        report.read.append("new layout: rows by part, then channel")
        return
    tensors = potential.state_dict()  # shares memory with the potential
    layers = ["embedding.gate.2"]
    if not isinstance(potential.config, TensorNet2Config):
        layers += [f"layers.{k}.filters.4" for k in range(potential.config.num_layers)]
    for layer in layers:
        for kind in ("weight", "bias"):
            old = tensors[f"network.{layer}.{kind}"]
            old.copy_(old.unflatten(0, (-1, 3)).transpose(0, 1).flatten(0, 1))
    report.remapped.append(f"old layout ({reason}): rows of {', '.join(layers)}")
