"""Models and priors by name: what configurations and checkpoints call them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from torchmdx.models.priors.base import Prior, PriorConfig
from torchmdx.models.priors.coulomb import Coulomb, CoulombConfig
from torchmdx.models.priors.d2 import D2, D2Config
from torchmdx.models.priors.d3 import D3, D3Config
from torchmdx.models.priors.zbl import ZBL, ZBLConfig
from torchmdx.models.tensornet import TensorNet, TensorNetConfig
from torchmdx.models.tensornet2 import TensorNet2, TensorNet2Config

MODELS: dict[str, type[TensorNetConfig]] = {"tensornet": TensorNetConfig, "tensornet2": TensorNet2Config}
PRIORS: dict[str, type[PriorConfig]] = {
    config.name: config for config in (ZBLConfig, CoulombConfig, D3Config, D2Config)
}


def make_network(config: TensorNetConfig) -> TensorNet | TensorNet2:
    """The network of a configuration, with random weights."""
    return TensorNet2(config) if isinstance(config, TensorNet2Config) else TensorNet(config)


def make_prior(config: PriorConfig, model: TensorNetConfig) -> Prior:
    """The prior of a configuration, for a model. Raises ValueError for one that the model cannot serve."""
    match config:
        case CoulombConfig():
            if config.charges == "given":
                return Coulomb(config)
            if not isinstance(model, TensorNet2Config):
                raise ValueError("the prior coulomb needs a model that predicts charges: tensornet2, got tensornet")
            return Coulomb(config, model.num_layers + 1, model.num_charges)
        case ZBLConfig():
            return ZBL(config)
        case D3Config():
            return D3(config)
        case D2Config():
            return D2(config)
    raise TypeError(f"a prior must be one of {', '.join(PRIORS)}, got {type(config).__name__}")


def name_of(config: TensorNetConfig) -> str:
    """The name of a model's configuration."""
    return next(name for name, kind in MODELS.items() if kind is type(config))


def model_to_dict(config: TensorNetConfig) -> dict[str, Any]:
    """{"model": name, **settings}, plain values."""
    return {"model": name_of(config), **asdict(config)}


def model_from_dict(values: Mapping[str, Any]) -> TensorNetConfig:
    """The configuration in {"model": name, **settings}. Raises ValueError for unknown names and wrong values."""
    return _from_dict(values, "model", MODELS)


def prior_to_dict(config: PriorConfig) -> dict[str, Any]:
    """{"prior": name, **settings}, plain values."""
    return {"prior": config.name, **asdict(config)}


def prior_from_dict(values: Mapping[str, Any]) -> PriorConfig:
    """The configuration in {"prior": name, **settings}. Raises ValueError for unknown names and wrong values."""
    return _from_dict(values, "prior", PRIORS)


def _from_dict(values: Mapping[str, Any], kind: str, known: Mapping[str, type[Any]]) -> Any:
    settings = dict(values)
    name = settings.pop(kind, None)
    if name not in known:
        raise ValueError(f"{kind} must be one of {', '.join(known)}, got {name!r}")
    unknown = settings.keys() - {field.name for field in fields(known[name])}
    if unknown:
        raise ValueError(f"the {kind} {name} has no settings {', '.join(sorted(unknown))}")
    try:
        return known[name](**settings)
    except TypeError as error:
        raise ValueError(f"the {kind} {name} cannot be made of its settings: {error}") from error
