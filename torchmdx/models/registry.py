"""Models and priors by name: what configurations and checkpoints call them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, is_dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

from torch import nn

from torchmdx.models.energy_head import HEADS, GatedHead, ScalarHead
from torchmdx.models.priors.base import Prior, PriorConfig
from torchmdx.models.priors.coulomb import Coulomb, CoulombConfig
from torchmdx.models.priors.d2 import D2, D2Config
from torchmdx.models.priors.d3 import D3, D3Config
from torchmdx.models.priors.zbl import ZBL, ZBLConfig
from torchmdx.models.qet import QET, QETConfig, make_qet_head
from torchmdx.models.tensornet import TensorNet, TensorNetConfig
from torchmdx.models.tensornet2 import TensorNet2, TensorNet2Config
from torchmdx.models.wrapped import Energies, WrappedConfig, new_module


class ModelConfig(Protocol):
    """Interface of every model's configuration: a frozen dataclass of plain values with at least these settings."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def cutoff(self) -> float: ...  # Å, beyond which the network ignores neighbours

    @property
    def max_z(self) -> int: ...  # the largest atomic number the model supports


class RegisteredModel(NamedTuple):
    """A registered model: the class of its configuration, and factories of its network and head."""

    config: type[Any]
    network: Callable[[Any], nn.Module]
    head: Callable[[Any], nn.Module]


class RegisteredPrior(NamedTuple):
    """A registered prior: the class of its configuration, and a factory that also gets the model's configuration."""

    config: type[PriorConfig]
    make: Callable[[Any, ModelConfig], Prior]


def default_head(config: Any) -> ScalarHead | GatedHead:
    """The default head: a small network of the `config.num_channels` features of an atom."""
    kind = HEADS[getattr(config, "head", "scalar")]
    return kind(config.num_channels, getattr(config, "activation", "silu"), getattr(config, "num_head_layers", 0))


def _coulomb(config: CoulombConfig, model: ModelConfig) -> Coulomb:
    if config.charges == "given":
        return Coulomb(config)
    if not isinstance(model, TensorNet2Config):
        raise ValueError(f"the prior coulomb needs a model that predicts charges: tensornet2, got {name_of(model)}")
    return Coulomb(config, model.num_layers + 1, model.num_charges)


BUILT_IN = {
    "tensornet": RegisteredModel(TensorNetConfig, TensorNet, default_head),
    "tensornet2": RegisteredModel(TensorNet2Config, TensorNet2, default_head),
    "qet": RegisteredModel(QETConfig, QET, make_qet_head),
}
MODELS: dict[str, RegisteredModel] = {
    **BUILT_IN,
    "wrapped": RegisteredModel(WrappedConfig, new_module, lambda config: Energies()),
}
BUILT_IN_PRIORS = {
    "zbl": RegisteredPrior(ZBLConfig, lambda config, model: ZBL(config)),
    "coulomb": RegisteredPrior(CoulombConfig, _coulomb),
    "d3": RegisteredPrior(D3Config, lambda config, model: D3(config)),
    "d2": RegisteredPrior(D2Config, lambda config, model: D2(config)),
}
PRIORS: dict[str, RegisteredPrior] = dict(BUILT_IN_PRIORS)


def register_model(
    name: str,
    config: type[Any],
    network: Callable[[Any], nn.Module],
    head: Callable[[Any], nn.Module] | None = None,
) -> None:
    """Registers a model under a name, for `Potential`, checkpoints and the configuration of a training.

    docs/add_a_model.md lists the requirements of the network; `torchmdx.evaluation.conformance.check` tests them. A
    registration is valid in its process: register a model where it is defined, before its checkpoints are loaded.

    Args:
        config: A frozen dataclass of plain values (numbers, strings, booleans, tuples of these) with at least `cutoff`,
            Å, and `max_z`.
        network: Makes a module from a configuration. Its forward(edges, vectors, atomic_numbers, charge) returns
            features [N,C] of atoms from edge vectors [E,3] Å, atomic_numbers [N] and the charge [N] of each atom's
            system.
        head: Makes a module from a configuration: features [N,C] to outputs [N]. None: the default head, for which the
            configuration needs `num_channels` C, and may have `activation`, `num_head_layers` and `head`.

    Raises:
        ValueError: For a name that is taken.
        TypeError: For an unsuitable configuration.
        ValueError: For an unsuitable configuration.
    """
    _require_name("model", name)
    _require_frozen(name, config)
    required = ["cutoff", "max_z", *([] if head else ["num_channels"])]
    missing = [setting for setting in required if setting not in {field.name for field in fields(config)}]
    if missing:
        raise ValueError(
            f"the config of {name} is missing {', '.join(missing)}: it must have the settings {', '.join(required)}"
        )
    _require_free("model", name, config, MODELS, BUILT_IN)
    MODELS[name] = RegisteredModel(config, network, head or default_head)


def register_prior(config: type[PriorConfig], prior: Callable[[Any], Prior]) -> None:
    """Registers a prior under `config.name`, for `Potential`, checkpoints and the configuration of a training.

    docs/add_a_model.md lists the requirements of the prior; `torchmdx.evaluation.conformance.check` tests them. A
    registration is valid in its process: register a prior where it is defined, before checkpoints with it are loaded.

    Args:
        config: A frozen dataclass of plain values derived from `torchmdx.models.priors.base.PriorConfig`, with the
            class attribute `name` and, unless the prior overrides `cutoff`, the setting `cutoff`, Å.
        prior: Makes a `torchmdx.models.priors.base.Prior` from a configuration. Its forward(geometry) returns the
            energies [N] of the atoms, eV. It has no weights: tables are buffers with persistent=False.

    Raises:
        ValueError: For a name that is taken.
        TypeError: For an unsuitable configuration.
        ValueError: For an unsuitable configuration.
    """
    if not (isinstance(config, type) and issubclass(config, PriorConfig)):
        raise TypeError(f"the config of a prior must be a class derived from PriorConfig, got {config!r}")
    name: Any = getattr(config, "name", None)
    _require_name("prior", name)
    _require_frozen(name, config)
    if "__dataclass_params__" not in vars(config):
        raise TypeError(f"the config of {name} must be a dataclass, got {config!r} without the decorator")
    _require_free("prior", name, config, PRIORS, BUILT_IN_PRIORS)
    PRIORS[name] = RegisteredPrior(config, lambda settings, model: prior(settings))


def _require_name(kind: str, name: Any) -> None:
    if not (isinstance(name, str) and name.isidentifier()):
        raise ValueError(f"a {kind}'s name must consist of letters, digits and _, got {name!r}")


def _require_frozen(name: str, config: type[Any]) -> None:
    if not (isinstance(config, type) and is_dataclass(config)):
        raise TypeError(f"the config of {name} must be a dataclass, got {config!r}")
    if not config.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise ValueError(f"the config of {name} must be a frozen dataclass, got one that is not: {config.__name__}")


def _require_free(
    kind: str,
    name: str,
    config: type[Any],
    registered: Mapping[str, RegisteredModel | RegisteredPrior],
    built_in: Mapping[str, RegisteredModel | RegisteredPrior],
) -> None:
    """Raises ValueError if the name, or the configuration, belongs to another model or prior."""
    taken = registered.get(name)
    if taken is not None and not (name not in built_in and _same_class(taken.config, config)):
        raise ValueError(f"the {kind} name {name!r} must be new, got the name of {taken.config.__name__}")
    others = [other for other, entry in registered.items() if entry.config is config and other != name]
    if others:
        raise ValueError(f"a config must belong to one {kind}: {config.__name__} belongs to {others[0]}, got {name!r}")


def _same_class(one: type[Any], other: type[Any]) -> bool:
    """Whether two classes are the same, or two definitions of one, as when a notebook cell runs twice."""
    return (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__)


def model_of(config: ModelConfig) -> RegisteredModel:
    """The registered model of a configuration. Raises TypeError if there is none."""
    return MODELS[name_of(config)]


def make_network(config: ModelConfig) -> nn.Module:
    """The network of a configuration, with random weights."""
    return model_of(config).network(config)


def make_head(config: ModelConfig) -> nn.Module:
    """The head of a configuration, with random weights."""
    return model_of(config).head(config)


def make_prior(config: PriorConfig, model: ModelConfig) -> Prior:
    """The prior of a configuration, for a model.

    Raises:
        ValueError: For a model without what the prior needs and for a prior with weights.
        TypeError: For a configuration that is not registered.
    """
    registered = PRIORS.get(getattr(config, "name", ""))
    if registered is None or registered.config is not type(config):
        raise TypeError(
            f"a prior must be one of {', '.join(PRIORS)}, got a {type(config).__name__}: register it first, "
            "torchmdx.register_prior(config, prior)"
        )
    prior = registered.make(config, model)
    if not isinstance(prior, Prior):
        raise TypeError(f"the prior {config.name} must be made as a Prior, got a {type(prior).__name__}")
    if weights := list(prior.state_dict()):
        raise ValueError(
            f"the prior {config.name} must have no weights, and buffers with persistent=False, got "
            f"{', '.join(weights)} in its state_dict"
        )
    return prior


def name_of(config: ModelConfig) -> str:
    """The name of a model's configuration. Raises TypeError if its class is not registered."""
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
    known = {name: model.config for name, model in MODELS.items()}
    return _from_dict(values, "model", known, "its config, its network")


def prior_to_dict(config: PriorConfig) -> dict[str, Any]:
    """{"prior": name, **settings}, plain values."""
    return {"prior": config.name, **asdict(config)}


def prior_from_dict(values: Mapping[str, Any]) -> PriorConfig:
    """The configuration in {"prior": name, **settings}. Raises ValueError for unknown names and wrong values."""
    known = {name: prior.config for name, prior in PRIORS.items()}
    config: PriorConfig = _from_dict(values, "prior", known, "its config, its module")
    return config


def _as_tuple(value: Any) -> Any:
    return tuple(_as_tuple(part) for part in value) if isinstance(value, list) else value


def _from_dict(values: Mapping[str, Any], kind: str, known: Mapping[str, type[Any]], arguments: str) -> Any:
    """arguments: of `register_model` or `register_prior`, for the error."""
    settings = dict(values)
    name = settings.pop(kind, None)
    if not isinstance(name, str) or name not in known:
        # Configurations name no wrapped module.
        text = f"{kind} must be one of {', '.join(k for k in known if k != 'wrapped')}, got {name!r}"
        if isinstance(name, str) and name.isidentifier():
            call = f"register_{kind}({f'{name!r}, ' if kind == 'model' else ''}{arguments})"
            text += (
                f". If {name} is a {kind} of your own or of another package, register it first: torchmdx.{call}. "
                "Loading a file never imports code"
            )
        raise ValueError(text)
    unknown = settings.keys() - {field.name for field in fields(known[name])}
    if unknown:
        raise ValueError(f"the {kind} {name} has no settings {', '.join(sorted(unknown))}")
    try:
        # JSON has lists where a configuration has tuples.
        return known[name](**{key: _as_tuple(value) for key, value in settings.items()})
    except (TypeError, ArithmeticError) as error:
        raise ValueError(f"the {kind} {name} cannot be made of its settings: {error}") from error
