"""What a plan is asked: a network, priors, a workload, a precision and a machine; and engines from outside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from torchmdx.engines.plan.machine import Machine
from torchmdx.engines.plan.settings import unknown_setting
from torchmdx.engines.plan.workload import Workload
from torchmdx.models.energy_head import HEADS
from torchmdx.models.priors.base import PriorConfig
from torchmdx.models.qet import QET, QETConfig
from torchmdx.models.tensornet import TensorNet, TensorNetConfig
from torchmdx.models.tensornet2 import TensorNet2, TensorNet2Config

KINDS: dict[type[Any], str] = {TensorNet: "TensorNet", TensorNet2: "TensorNet2", QET: "QET"}
HEAD_KINDS = tuple(head.__name__ for head in HEADS.values())


@dataclass(frozen=True)
class Network:
    """What a potential computes with: the classes of its network and head by name, and the dtype of its weights.

    A class derived from a TensorNet may compute something else, so that it has a name of its own. unknown: why engines
    do not know one of its settings; None if they do.
    """

    kind: str
    head: str = HEAD_KINDS[0]
    dtype: str = "float32"
    unknown: str | None = None

    @classmethod
    def of_config(cls, config: Any) -> Network:
        """Of a potential made from a configuration."""
        kinds = {TensorNetConfig: "TensorNet", TensorNet2Config: "TensorNet2", QETConfig: "QET"}
        head = HEADS.get(getattr(config, "head", "scalar"))
        kind = kinds.get(type(config), type(config).__name__.removesuffix("Config"))
        named = HEAD_KINDS[0] if head is None else head.__name__
        return cls(kind, named, unknown=unknown_setting(config) if type(config) in kinds else None)

    @classmethod
    def of(cls, potential: Any) -> Network:
        """Of a potential as it is: parts of it may have been replaced."""
        network, head = type(potential.network), type(potential.head)
        kind = KINDS.get(network, network.__name__)
        if network not in KINDS and kind in KINDS.values():
            kind = f"{network.__module__}.{kind}"
        named = head.__name__ if head in HEADS.values() else f"{head.__module__}.{head.__name__}"
        named = named if named not in HEAD_KINDS or head in HEADS.values() else f"other {named}"
        unknown = unknown_setting(potential.config) if network in KINDS else None
        return cls(kind, named, str(potential.dtype).removeprefix("torch."), unknown)

    @property
    def is_built_in(self) -> bool:
        return self.kind in KINDS.values()

    @property
    def has_pairs(self) -> bool:
        """Whether engines/pairs supports it, with any priors."""
        return self.is_built_in and self.head in HEAD_KINDS and self.unknown is None


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is to be evaluated, and where: the facts from which a plan is made."""

    config: Any
    priors: tuple[PriorConfig, ...]
    work: Workload
    precision: str
    machine: Machine
    network: Network


class Candidate(Protocol):
    """An engine from outside the package, as the plan sees it (engines/registry.py)."""

    @property
    def name(self) -> str: ...

    def why_not(self, request: Request) -> str | None: ...
