"""Conversion of a torchmd-net checkpoint's hyper_parameters to torchmdx's configuration."""

from __future__ import annotations

from typing import Any

from torchmdx.checkpoints.formats.reading import Report, UnsupportedCheckpoint
from torchmdx.checkpoints.formats.torchmdnet.container import Content
from torchmdx.models.tensornet import TensorNetConfig
from torchmdx.models.tensornet2 import TensorNet2Config
from torchmdx.structures.system_fields import LAST_ELEMENT

# torchmd-net's names to torchmdx's. AceFF-2.0 and development versions of TensorNet2 use the last two.
MODELS = {
    "tensornet": "tensornet",
    "tensornet2": "tensornet2",
    "tensornetv2_alt": "tensornet2",
    "tensornet-nqe": "tensornet2",
}
RESP = "tensornet2_resp"  # of AceFF-2-RESP-1: a TensorNet2 with a second head, of RESP charges
# torchmd-net adds this to the sum of weights in charge equilibration.
CHARGE_SLACK = 1e-6
SCALAR, COULOMB = "Scalar", "ScalarPlusWeightedCoulomb"
# A setting must have one of these values or be absent: any other value would change the energy.
_ALLOWED_VALUES: dict[str, tuple[Any, ...]] = {
    "model": tuple(MODELS),
    "reduce_op": ("add", "sum"),
    "cutoff_lower": (0, 0.0),
    "atom_filter": (-1,),
    "rbf_type": ("expnorm", "gauss"),
}
_REQUIRED_SETTINGS = ("embedding_dimension", "num_layers", "num_rbf", "cutoff_upper", "max_z")
# Settings that the reader uses, in this file or another.
_USED = {
    *_ALLOWED_VALUES,
    *_REQUIRED_SETTINGS,
    "output_model",
    "trainable_rbf",
    "activation",
    "equivariance_invariance_group",
    "prior_model",
    "prior_args",
    "remove_ref_energy",
    "check_errors",
}
_USED_BY_SECOND = {"q_dim", "repulsion"}
_USED_BY_COULOMB = {"q_weights", "coulomb_cutoff"}
# Settings of the model that do not affect the energy, and why.
_WITHOUT_EFFECT = {
    "max_num_neighbors": "torchmdx keeps every neighbour",
    "coulomb_max_num_neighbors": "torchmdx keeps every neighbour",
    "coulomb_neighbor_strategy": "torchmdx has its own neighbour search",
    "coulomb_epsilon_solvent": "torchmd-net ignores it and uses 78.3",
    "static_shapes": "shapes are always static",
    "precision": "the weights have the dtype they were saved in",
    "derivative": "forces are always available",
    "box_vecs": "every structure has its own cell",
    "charge": "every structure has a charge",
    "spin": "neither architecture uses it",
    "output_mlp_num_layers": "the number of layers follows from the tensors of the head",
}


def is_second(options: dict[str, Any]) -> bool:
    """Whether the options describe a TensorNet2, under any of its names."""
    return MODELS.get(options["model"]) == "tensornet2"


def has_coulomb(options: dict[str, Any]) -> bool:
    """Whether the output model adds the Coulomb energy of predicted charges."""
    return options.get("output_model", SCALAR) == COULOMB


def read_config(content: Content, report: Report, num_head_layers: int) -> TensorNetConfig:
    """The configuration. Raises UnsupportedCheckpoint, naming the setting, and ValueError for missing ones."""
    options, origin = content.options, content.origin
    _require_supported(options, origin)
    missing = [key for key in (*_REQUIRED_SETTINGS, *(["q_dim"] if is_second(options) else [])) if key not in options]
    if missing:
        raise ValueError(f"{origin!r} lacks the settings {', '.join(missing)}")
    values = dict(
        num_channels=options["embedding_dimension"],
        num_layers=options["num_layers"],
        num_radial=options["num_rbf"],
        radial_basis=options.get("rbf_type", "expnorm"),
        trainable_basis=bool(options.get("trainable_rbf", False)),
        activation=options.get("activation", "silu"),
        cutoff=float(options["cutoff_upper"]),
        # torchmd-net's max_z is the number of rows of the embedding, from element 0 on, and is often 128.
        max_z=min(options["max_z"] - 1, LAST_ELEMENT),
        group=options.get("equivariance_invariance_group", "O(3)"),
        num_head_layers=num_head_layers,
    )
    _report(options, report)
    if is_second(options):
        return TensorNet2Config(**values, num_charges=options["q_dim"], charge_slack=CHARGE_SLACK)
    return TensorNetConfig(**values)


def _require_supported(options: dict[str, Any], origin: str) -> None:
    allowed = dict(_ALLOWED_VALUES)
    allowed["output_model"] = (SCALAR, COULOMB) if MODELS.get(options.get("model", "")) == "tensornet2" else (SCALAR,)
    if "model" not in options:
        raise ValueError(f"{origin!r} lacks the setting model")
    if options["model"] == RESP:
        raise UnsupportedCheckpoint(
            f"{origin!r}: model {RESP}, such as AceFF-2-RESP-1, has a head of RESP charges, which torchmdx lacks"
        )
    for key, values in allowed.items():
        if key in options and options[key] not in values:
            raise UnsupportedCheckpoint(
                f"{origin!r}: {key} must be {' or '.join(map(repr, values))}, got {options[key]!r}"
            )


def _report(options: dict[str, Any], report: Report) -> None:
    name, ours = options["model"], MODELS[options["model"]]
    report.read.append(f"model {name}, output model {options.get('output_model', SCALAR)}")
    if name != ours:
        report.remapped.append(f"model {name} is {ours}: a name from before its release")
    if options["max_z"] - 1 > LAST_ELEMENT:
        report.ignored.append(f"embeddings beyond element {LAST_ELEMENT}: max_z is {options['max_z']}")
    used = _USED | (_USED_BY_SECOND if is_second(options) else set())
    used |= _USED_BY_COULOMB if has_coulomb(options) else set()
    for key in sorted(key for key in options.keys() & _WITHOUT_EFFECT.keys() if options[key]):
        report.ignored.append(f"{key} = {options[key]!r}: {_WITHOUT_EFFECT[key]}")
    left = options.keys() - used - _WITHOUT_EFFECT.keys()
    for key in sorted(key for key in left & (_USED_BY_SECOND | _USED_BY_COULOMB) if options[key]):
        report.ignored.append(f"{key} = {options[key]!r}: {name} does not use it")
    training = sorted(left - _USED_BY_SECOND - _USED_BY_COULOMB)
    if training:
        report.ignored.append(f"settings that the energy does not depend on: {', '.join(training)}")
