"""Reader of torchmd-net checkpoints (TensorNet). Only tensors, numbers and text are read: `weights_only=True`."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchmdx.models.potential import Potential
from torchmdx.models.tensornet import TensorNetConfig
from torchmdx.system import LAST_ELEMENT

# A setting must have one of these values (or be absent): anything else would change the energy.
_REQUIRED: dict[str, tuple[Any, ...]] = {
    "model": ("tensornet",),
    "output_model": ("Scalar",),
    "reduce_op": ("add", "sum"),
    "cutoff_lower": (0, 0.0),
    "atom_filter": (-1,),
    "output_mlp_num_layers": (0, None),
}
# Settings of training and of the peer's own search; they do not change the energy. Everything unknown is refused
# only when it belongs to the model: checkpoints carry the trainer's options as well.
_MODEL_ONLY_ELSEWHERE = ("q_dim", "q_weights", "coulomb_cutoff", "repulsion", "vector_cutoff", "spin")


class UnsupportedCheckpoint(ValueError):
    """A torchmd-net checkpoint that is whole, but holds something torchmdx cannot represent."""


def read_torchmdnet(path: Path) -> Potential:
    """The TensorNet in a torchmd-net checkpoint, in the dtype it was saved in.

    Raises ValueError for a file that is broken or is no such checkpoint, and UnsupportedCheckpoint, naming the key,
    for an option or prior that torchmdx does not have.
    """
    checkpoint = _load_tensors(path)
    options = checkpoint["hyper_parameters"]
    weights = {re.sub(r"^model\.", "", name): value for name, value in checkpoint["state_dict"].items()}
    weights = {
        re.sub(r"^output_model\.output_network\.([02])\.", r"output_model.output_network.layers.\1.", name): value
        for name, value in weights.items()
    }
    config = _config(options, path)
    potential = Potential(config)
    state = _Remaining(weights, path)
    tensors = _translate(state, config, options, potential)
    state.require_nothing_left()
    potential.fill(tensors, repr(str(path)))
    # Decided by what the file itself says, whatever anybody's options: files written while torchmd-net still had this
    # setting order the last filter layer's rows by channel, then part; ours and newer ones by part, then channel.
    if "check_errors" in options:
        _reorder_old_rows(potential)
    return potential


def _load_tensors(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:  # torch would choose a reader by the name of a path
            checkpoint = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{str(path)!r} holds more than tensors, numbers and text, and was not loaded: "
            "torchmdx never runs code from a checkpoint"
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise ValueError(f"{str(path)!r} is not a readable checkpoint ({error})") from error
    parts = ("hyper_parameters", "state_dict")
    if not isinstance(checkpoint, dict) or not all(isinstance(checkpoint.get(part), dict) for part in parts):
        raise ValueError(f"{str(path)!r} is no torchmd-net checkpoint: it needs {' and '.join(parts)}")
    return checkpoint


def _config(options: dict[str, Any], path: Path) -> TensorNetConfig:
    for key, allowed in _REQUIRED.items():
        if key in options and options[key] not in allowed:
            raise UnsupportedCheckpoint(
                f"{str(path)!r}: {key} must be {' or '.join(map(repr, allowed))}, got {options[key]!r}"
            )
    for key in _MODEL_ONLY_ELSEWHERE:
        if options.get(key):
            raise UnsupportedCheckpoint(f"{str(path)!r}: {key} is not supported, got {options[key]!r}")
    wanted = ("embedding_dimension", "num_layers", "num_rbf", "cutoff_upper", "max_z")
    missing = [key for key in wanted if key not in options]
    if missing:
        raise ValueError(f"{str(path)!r} lacks the settings {', '.join(missing)}")
    return TensorNetConfig(
        num_channels=options["embedding_dimension"],
        num_layers=options["num_layers"],
        num_radial=options["num_rbf"],
        radial_basis=options.get("rbf_type", "expnorm"),
        trainable_basis=bool(options.get("trainable_rbf", False)),
        activation=options.get("activation", "silu"),
        cutoff=float(options["cutoff_upper"]),
        # Theirs counts rows of the embedding, from element 0 on, and is often 128.
        max_z=min(options["max_z"] - 1, LAST_ELEMENT),
        group=options.get("equivariance_invariance_group", "O(3)"),
    )


def _reorder_old_rows(potential: Potential) -> None:
    tensors = potential.state_dict()  # shares memory with the potential
    for layer in ("embedding.gate.2", *(f"layers.{k}.filters.4" for k in range(potential.config.num_layers))):
        for kind in ("weight", "bias"):
            old = tensors[f"network.{layer}.{kind}"]
            old.copy_(old.unflatten(0, (-1, 3)).transpose(0, 1).flatten(0, 1))


class _Remaining:
    """The file's tensors, taken out one by one, so that nothing is ignored without a word."""

    def __init__(self, weights: dict[str, Tensor], path: Path) -> None:
        self.weights, self.path = dict(weights), path

    def take(self, name: str) -> Tensor:
        if name not in self.weights:
            raise ValueError(f"{str(self.path)!r} lacks the tensor {name}")
        return self.weights.pop(name)

    def drop(self, name: str) -> None:
        self.weights.pop(name, None)

    def require_nothing_left(self) -> None:
        if self.weights:
            raise UnsupportedCheckpoint(f"{str(self.path)!r}: unsupported tensors {', '.join(sorted(self.weights))}")


def _translate(
    state: _Remaining, config: TensorNetConfig, options: dict[str, Any], potential: Potential
) -> dict[str, Tensor]:
    """Their tensors under our names."""
    take: Callable[[str], Tensor] = lambda name: state.take(f"representation_model.{name}")  # noqa: E731
    embedding = "tensor_embedding"
    state.drop("representation_model.distance.box")
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
        for index in (0, 2):
            new[f"head.network.{index}.{kind}"] = state.take(f"output_model.output_network.layers.{index}.{kind}")
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
    new["scale"] = state.take("std").double()
    new["shift"] = state.take("mean").double()
    new["reference_energies"] = _references(state, config, options, potential.reference_energies)
    return new


def _references(state: _Remaining, config: TensorNetConfig, options: dict[str, Any], zeros: Tensor) -> Tensor:
    """Per-element energies of the Atomref prior, if there is one; other priors are refused by name."""
    energies = zeros.clone()
    for index, (name, settings) in enumerate(_priors(options)):
        if name not in ("Atomref", "LearnableAtomref"):
            raise UnsupportedCheckpoint(f"{str(state.path)!r}: prior_model {name} is not supported")
        state.drop(f"prior_model.{index}.initial_atomref")
        values = state.take(f"prior_model.{index}.atomref.weight").double().flatten()
        if settings.get("enable", True):
            count = min(len(values), len(energies))
            energies[:count] += values[:count]
    return energies


def _priors(options: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """(name, settings) of every prior, from the three ways the options can say it."""
    given = options.get("prior_model") or []
    named: list[tuple[str, dict[str, Any]]] = []
    for prior in given if isinstance(given, list) else [given]:
        if isinstance(prior, dict):
            named += [(name, settings or {}) for name, settings in prior.items()]
        else:
            named.append((str(prior), {}))
    settings = options.get("prior_args")
    if settings is not None:
        listed = settings if isinstance(settings, list) else [settings]
        named = [(name, values or {}) for (name, _), values in zip(named, listed, strict=False)]
    return named
