"""Models and priors by name: what configurations and checkpoints call them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, is_dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

from torch import nn

from torchmdx.models.energy_head import ScalarHead
from torchmdx.models.priors.base import Prior, PriorConfig
from torchmdx.models.priors.coulomb import Coulomb, CoulombConfig
from torchmdx.models.priors.d2 import D2, D2Config
from torchmdx.models.priors.d3 import D3, D3Config
from torchmdx.models.priors.zbl import ZBL, ZBLConfig
from torchmdx.models.tensornet import TensorNet, TensorNetConfig
from torchmdx.models.tensornet2 import TensorNet2, TensorNet2Config


class ModelConfig(Protocol):
    """What torchmdx asks of every model's configuration: a frozen dataclass of plain values with these settings."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def cutoff(self) -> float: ...  # Å, how far an atom sees

    @property
    def max_z(self) -> int: ...  # the largest atomic number the model knows


class Model(NamedTuple):
    """A kind of model: its configuration, and what makes its network and its head of one."""

    config: type[Any]
    network: Callable[[Any], nn.Module]
    head: Callable[[Any], nn.Module]


def scalar_head(config: Any) -> ScalarHead:
    """The head of models that bring none: a small network of `config.num_channels` features."""
    return ScalarHead(config.num_channels, getattr(config, "activation", "silu"), getattr(config, "num_head_layers", 0))


BUILT_IN = {
    "tensornet": Model(TensorNetConfig, TensorNet, scalar_head),
    "tensornet2": Model(TensorNet2Config, TensorNet2, scalar_head),
}
MODELS: dict[str, Model] = dict(BUILT_IN)
PRIORS: dict[str, type[PriorConfig]] = {
    config.name: config for config in (ZBLConfig, CoulombConfig, D3Config, D2Config)
}


def register_model(
    name: str,
    config: type[Any],
    network: Callable[[Any], nn.Module],
    head: Callable[[Any], nn.Module] | None = None,
) -> None:
    """Makes a model of your own known by name, to `Potential`, checkpoints and the training's configuration.

    config: a frozen dataclass of plain values (numbers, texts, True and False) with at least `cutoff`, Å, and `max_z`.
    network: makes a module of a configuration. Its forward(edges, vectors, atomic_numbers, charge) gives features
        [N,C] of atoms from edge vectors [E,3] Å, atomic_numbers [N] and the charge [N] of each atom's system.
    head: makes a module of a configuration: features [N,C] to outputs [N]. None: torchmdx's own, for which the
        configuration needs `num_channels` C, and may have `activation` and `num_head_layers`.

    docs/add_a_model.md says what the network has to keep to; `torchmdx.conformance.check` tests it. Registering is
    for one process: do it where the model is defined, before its checkpoints are loaded. Raises ValueError for a name
    that is taken, TypeError or ValueError for a configuration that cannot serve.
    """
    if not (isinstance(name, str) and name.isidentifier()):
        raise ValueError(f"a model's name must be a word of letters, digits and _, got {name!r}")
    if not (isinstance(config, type) and is_dataclass(config)):
        raise TypeError(f"the config of {name} must be a dataclass, got {config!r}")
    if not config.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise ValueError(f"the config of {name} must be a frozen dataclass, got one that is not: {config.__name__}")
    wanted = ["cutoff", "max_z", *([] if head else ["num_channels"])]
    missing = [setting for setting in wanted if setting not in {field.name for field in fields(config)}]
    if missing:
        raise ValueError(f"the config of {name} must have the settings {', '.join(wanted)}, got none {missing}")
    taken = MODELS.get(name)
    if taken is not None and not (name not in BUILT_IN and _same_class(taken.config, config)):
        raise ValueError(f"the model name {name!r} must be new, got one that {taken.config.__name__} has")
    others = [other for other, model in MODELS.items() if model.config is config and other != name]
    if others:
        raise ValueError(f"a config must belong to one model: {config.__name__} belongs to {others[0]}, got {name!r}")
    MODELS[name] = Model(config, network, head or scalar_head)


def _same_class(one: type[Any], other: type[Any]) -> bool:
    """Whether a class is another, or that one defined anew, as when a cell of a notebook is run again."""
    return (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__)


def model_of(config: ModelConfig) -> Model:
    """The kind of model a configuration is of. Raises TypeError for one that is not registered."""
    return MODELS[name_of(config)]


def make_network(config: ModelConfig) -> nn.Module:
    """The network of a configuration, with random weights."""
    return model_of(config).network(config)


def make_head(config: ModelConfig) -> nn.Module:
    """The head of a configuration, with random weights."""
    return model_of(config).head(config)


def make_prior(config: PriorConfig, model: ModelConfig) -> Prior:
    """The prior of a configuration, for a model. Raises ValueError for one that the model cannot serve."""
    match config:
        case CoulombConfig():
            if config.charges == "given":
                return Coulomb(config)
            if not isinstance(model, TensorNet2Config):
                raise ValueError(
                    f"the prior coulomb needs a model that predicts charges: tensornet2, got {name_of(model)}"
                )
            return Coulomb(config, model.num_layers + 1, model.num_charges)
        case ZBLConfig():
            return ZBL(config)
        case D3Config():
            return D3(config)
        case D2Config():
            return D2(config)
    raise TypeError(f"a prior must be one of {', '.join(PRIORS)}, got {type(config).__name__}")


def name_of(config: ModelConfig) -> str:
    """The name of a model's configuration. Raises TypeError for one that is not registered."""
    for name, model in MODELS.items():
        if model.config is type(config):
            return name
    raise TypeError(
        f"config must be of a registered model ({', '.join(MODELS)}), got a {type(config).__name__}: register its "
        "model first, torchmdx.register_model(name, config, network)"
    )


def model_to_dict(config: ModelConfig) -> dict[str, Any]:
    """{"model": name, **settings}, plain values."""
    return {"model": name_of(config), **asdict(config)}


def model_from_dict(values: Mapping[str, Any]) -> Any:
    """The configuration in {"model": name, **settings}. Raises ValueError for unknown names and wrong values."""
    name = values.get("model")
    if isinstance(name, str) and name.isidentifier() and name not in MODELS:
        raise ValueError(
            f"model must be one of {', '.join(MODELS)}, got {name!r}. If {name} is a model of your own or of another "
            f"package, register it first: torchmdx.register_model({name!r}, its config, its network). Nothing is "
            "imported because a file names it"
        )
    return _from_dict(values, "model", {known: model.config for known, model in MODELS.items()})


def prior_to_dict(config: PriorConfig) -> dict[str, Any]:
    """{"prior": name, **settings}, plain values."""
    return {"prior": config.name, **asdict(config)}


def prior_from_dict(values: Mapping[str, Any]) -> PriorConfig:
    """The configuration in {"prior": name, **settings}. Raises ValueError for unknown names and wrong values."""
    return _from_dict(values, "prior", PRIORS)


def _from_dict(values: Mapping[str, Any], kind: str, known: Mapping[str, type[Any]]) -> Any:
    settings = dict(values)
    name = settings.pop(kind, None)
    if not isinstance(name, str) or name not in known:
        raise ValueError(f"{kind} must be one of {', '.join(known)}, got {name!r}")
    unknown = settings.keys() - {field.name for field in fields(known[name])}
    if unknown:
        raise ValueError(f"the {kind} {name} has no settings {', '.join(sorted(unknown))}")
    try:
        return known[name](**settings)
    except (TypeError, ArithmeticError) as error:
        raise ValueError(f"the {kind} {name} cannot be made of its settings: {error}") from error
