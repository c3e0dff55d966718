"""The tensors of a matgl TensorNet under torchmdx's names."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchmdx.checkpoints.formats.reading import Report, UnsupportedCheckpoint
from torchmdx.models.tensornet import TensorNetConfig

# matgl's MatPES potentials store a table that only its training uses; the embedding has a linear map that it never
# applies.
_UNUSED = ("element_refs.onehot", "model.tensor_embedding.emb3.weight", "model.tensor_embedding.emb3.bias")


class StateDict:
    """Tensors of a state.pt that have not been read yet, so that none is silently ignored."""

    def __init__(self, state: Any, origin: str, report: Report) -> None:
        if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
            raise ValueError(f"{origin!r} must hold tensors by name, got a {type(state).__name__}")
        wrong = [name for name, value in state.items() if not isinstance(value, Tensor)]
        if wrong:
            raise ValueError(f"{origin!r}: {wrong[0]} must be a tensor, got a {type(state[wrong[0]]).__name__}")
        self.origin, self.report = origin, report
        self.tensors = dict(state)
        report.read.append(f"{len(self.tensors)} tensors")
        unused = [name for name in _UNUSED if self.tensors.pop(name, None) is not None]
        if unused:
            report.ignored.append(f"tensors without effect on the energy: {', '.join(unused)}")

    def take(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise ValueError(f"{self.origin!r} lacks the tensor {name}")
        return self.tensors.pop(name)

    def require_nothing_left(self) -> None:
        if self.tensors:
            raise UnsupportedCheckpoint(f"{self.origin!r}: unsupported tensors {', '.join(sorted(self.tensors))}")


def rename(
    state: StateDict, config: TensorNetConfig, settings: dict[str, Any], target_first: bool, numbers: list[int]
) -> dict[str, Tensor]:
    """All tensors of a potential. numbers: atomic number of each row of matgl's embedding; target_first: as in `Form`.

    Where a file has the target last, its vectors lead to the target. Filters of the vector part change their sign then.
    """
    embedding = "model.tensor_embedding"
    new = _basis(state, config, settings)
    for kind in ("weight", "bias"):
        filters, pair = _distance_maps(state, embedding, kind), state.take(f"{embedding}.emb2.{kind}")
        new[f"network.embedding.filters.{kind}"] = filters if target_first else _reversed(filters, config)
        new[f"network.embedding.pair.{kind}"] = pair if target_first else _exchanged(pair, config)
        new[f"network.embedding.norm.{kind}"] = state.take(f"{embedding}.init_norm.{kind}")
        new[f"network.embedding.gate.0.{kind}"] = state.take(f"{embedding}.linears_scalar.0.{kind}")
        new[f"network.embedding.gate.2.{kind}"] = _by_part(state, f"{embedding}.linears_scalar.1.{kind}")
        new[f"network.norm.{kind}"] = state.take(f"model.out_norm.{kind}")
        new[f"network.readout.{kind}"] = state.take(f"model.linear.{kind}")
        for layer in range(config.num_layers):
            ours, theirs = f"network.layers.{layer}.filters", f"model.layers.{layer}.linears_scalar"
            new[f"{ours}.0.{kind}"] = state.take(f"{theirs}.0.{kind}")
            new[f"{ours}.2.{kind}"] = state.take(f"{theirs}.1.{kind}")
            new[f"{ours}.4.{kind}"] = _by_part(state, f"{theirs}.2.{kind}")
        for index in range(0, 2 * config.num_head_layers + 3, 2):
            for part in ("layers", "gates"):
                new[f"head.{part}.{index}.{kind}"] = state.take(f"model.final_layer.gated.{part}.{index}.{kind}")
    for k, part in enumerate(("scalar", "vector", "symmetric")):
        new[f"network.embedding.mix.{part}.weight"] = state.take(f"{embedding}.linears_tensor.{k}.weight")
        for layer in range(config.num_layers):
            tensors = f"model.layers.{layer}.linears_tensor"
            new[f"network.layers.{layer}.mix_in.{part}.weight"] = state.take(f"{tensors}.{k}.weight")
            new[f"network.layers.{layer}.mix_out.{part}.weight"] = state.take(f"{tensors}.{k + 3}.weight")
    if not target_first:
        state.report.remapped.append("source and target of the embedding exchanged: columns of pairs, signs of vectors")
    elements = state.take(f"{embedding}.emb.weight")
    new["network.embedding.elements.weight"] = by_atomic_number(elements, numbers, config, f"{embedding}.emb.weight")
    new["scale"], new["shift"] = state.take("data_std").double(), state.take("data_mean").double()
    references = state.tensors.pop("element_refs.property_offset", None)
    if references is None:
        references = torch.zeros(len(numbers), dtype=torch.float64, device="cpu")
    name = "element_refs.property_offset"
    new["reference_energies"] = by_atomic_number(references.double(), numbers, config, name)
    return new


def _basis(state: StateDict, config: TensorNetConfig, settings: dict[str, Any]) -> dict[str, Tensor]:
    """Parameters of the radial basis."""
    prefix = "model.bond_expansion.rbf"
    if config.radial_basis == "bessel":  # has none: cutoff and number of functions determine it
        state.tensors.pop(f"{prefix}.cutoff", None)
        return {}
    if config.radial_basis == "expnorm":
        return {f"network.basis.{name}": state.take(f"{prefix}.{name}") for name in ("means", "betas")}
    width = settings.get("width", 0.5)
    if isinstance(width, bool) or not isinstance(width, (int, float)) or not 0 < width < math.inf:
        raise ValueError(f"{state.origin!r}: width must be > 0 and finite, got {width!r}")
    centers = state.take(f"{prefix}.centers")
    return {"network.basis.offsets": centers, "network.basis.coefficient": centers.new_tensor(-width)}


def _distance_maps(state: StateDict, embedding: str, kind: str) -> Tensor:
    """Rows of the three linear maps of the radial basis, which models built with Warp store as one."""
    merged = f"{embedding}.distance_proj.{kind}"
    if merged in state.tensors:
        if kind == "weight":
            state.report.remapped.append("distance_proj: three maps in one, as models with Warp kernels store them")
        return state.take(merged)
    return torch.cat([state.take(f"{embedding}.distance_proj{k}.{kind}") for k in (1, 2, 3)])


def _exchanged(pair: Tensor, config: TensorNetConfig) -> Tensor:
    """Columns for (target, source) from those for (source, target); a bias stays."""
    width = config.num_channels
    return pair if pair.ndim < 2 else torch.cat([pair[:, width:], pair[:, :width]], dim=1)


def _reversed(filters: Tensor, config: TensorNetConfig) -> Tensor:
    """Rows of the filters for vectors in the opposite direction."""
    width = config.num_channels
    return torch.cat([filters[:width], -filters[width : 2 * width], filters[2 * width :]])


def _by_part(state: StateDict, name: str) -> Tensor:
    """Rows ordered by part, then channel, from rows ordered by channel, then part."""
    value = state.take(name)
    if value.ndim < 1 or len(value) % 3:
        raise ValueError(f"{name} in {state.origin!r} must have three rows a channel, got shape {list(value.shape)}")
    return value.unflatten(0, (-1, 3)).transpose(0, 1).flatten(0, 1)


def by_atomic_number(
    rows: Tensor, numbers: list[int], config: TensorNetConfig, name: str, others: float = 0.0
) -> Tensor:
    """Rows at their atomic numbers; others: the value elsewhere."""
    if rows.ndim < 1 or len(rows) != len(numbers):
        raise ValueError(f"{name} must have a row for each of {len(numbers)} elements, got shape {list(rows.shape)}")
    out = rows.new_full((config.max_z + 1, *rows.shape[1:]), others)
    out[torch.tensor(numbers, device=out.device)] = rows
    return out
