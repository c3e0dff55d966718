"""`plan`: which engine and which kernels evaluate a potential, why, and what would run otherwise.

It reads nothing but its arguments: no GPU, no compiler, no backend. What happens at run time, such as a kernel that
cannot be compiled, is shown beside the plan (`StepReport`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchmdx.engines.plan import serves
from torchmdx.engines.plan.kernels import KernelPlan, plan_kernels
from torchmdx.engines.plan.machine import Machine
from torchmdx.engines.plan.workload import Stage, Workload
from torchmdx.models.energy_head import HEADS
from torchmdx.models.priors.base import PriorConfig
from torchmdx.models.priors.coulomb import CoulombConfig
from torchmdx.models.qet import QET, QETConfig
from torchmdx.models.tensornet import TensorNet, TensorNetConfig
from torchmdx.models.tensornet2 import TensorNet2, TensorNet2Config

PRECISIONS = ("float64", "float32", "half", "tf32", "bfloat16")
ON_KERNELS = ("half", "tf32", "bfloat16")  # of the fused kernels alone
KINDS: dict[type[Any], str] = {TensorNet: "TensorNet", TensorNet2: "TensorNet2", QET: "QET"}
FUSED_KINDS = ("TensorNet", "TensorNet2")
HEAD_KINDS = tuple(head.__name__ for head in HEADS.values())
FUSED, PAIRS, COMPILED, EXACT = "fused", "pairs", "C", "exact"
SHORT = ("launches", "few atoms", "within atoms", "network of edges", "network")  # stages of a plan in a few words


@dataclass(frozen=True)
class Network:
    """What a potential computes with: the classes of its network and head by name, and the dtype of its weights.

    A class derived from a TensorNet may compute something else, so that it has a name of its own.
    """

    kind: str
    head: str = HEAD_KINDS[0]
    dtype: str = "float32"

    @classmethod
    def of_config(cls, config: Any) -> Network:
        """Of a potential made from a configuration."""
        kinds = {TensorNetConfig: "TensorNet", TensorNet2Config: "TensorNet2", QETConfig: "QET"}
        head = HEADS.get(getattr(config, "head", "scalar"))
        kind = kinds.get(type(config), type(config).__name__.removesuffix("Config"))
        return cls(kind, HEAD_KINDS[0] if head is None else head.__name__)

    @classmethod
    def of(cls, potential: Any) -> Network:
        """Of a potential as it is: parts of it may have been replaced."""
        network, head = type(potential.network), type(potential.head)
        kind = KINDS.get(network, network.__name__)
        if network not in KINDS and kind in KINDS.values():
            kind = f"{network.__module__}.{kind}"
        named = head.__name__ if head in HEADS.values() else f"{head.__module__}.{head.__name__}"
        named = named if named not in HEAD_KINDS or head in HEADS.values() else f"other {named}"
        return cls(kind, named, str(potential.dtype).removeprefix("torch."))

    @property
    def is_built_in(self) -> bool:
        return self.kind in KINDS.values()

    @property
    def has_pairs(self) -> bool:
        """Whether engines/pairs supports it, with any priors."""
        return self.is_built_in and self.head in HEAD_KINDS


@dataclass(frozen=True, kw_only=True)
class Plan:
    """engine: FUSED, PAIRS, COMPILED or EXACT. kernels: of the fused engine.

    warning: why a network of a kind that has fused kernels does without them on a GPU.
    """

    engine: str
    why: str
    precision: str
    machine: Machine
    work: Workload
    stages: tuple[Stage, ...] = ()
    kernels: KernelPlan | None = None
    warning: str | None = None

    @property
    def short(self) -> str:
        """What runs, in a few words."""
        return "; ".join(stage.runs for stage in self.stages if stage.name in SHORT)

    def with_kernels(self, kernels: KernelPlan, capacity: int) -> Plan:
        """The same with the kernels for so many edges; stages that do not depend on these stay."""
        own = () if self.kernels is None else self.kernels.stages
        others = tuple(stage for stage in self.stages if stage not in own)
        work = replace(self.work, capacity=capacity)
        return replace(self, work=work, kernels=kernels, stages=(*kernels.stages, *others))

    def __str__(self) -> str:
        work = self.work
        systems = f" in {work.systems:,} systems" if work.systems != 1 else ""
        lines = [f"{work.atoms:,} atoms{systems} on {self.machine}, {self.precision}: {self.why}"]
        rows = [(s.name, s.runs, s.why, f"otherwise {s.otherwise}" if s.otherwise else "") for s in self.stages]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)] if rows else []
        for row in rows:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            lines.append(("  " + "  ".join(cells)).rstrip())
        if self.warning is not None:
            lines.append(f"  several times slower than the fused kernels: {self.warning}")
        return "\n".join(lines)


def plan(
    config: Any,
    priors: Sequence[PriorConfig],
    work: Workload,
    precision: str,
    machine: Machine,
    network: Network | None = None,
) -> Plan:
    """What runs for a network with priors, for so much work, in this precision on this machine.

    network: what the potential has, where that may differ from what its configuration says. Raises ValueError for a
    precision that is unknown, or that no engine has for this network and machine.
    """
    network = network or Network.of_config(config)
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")
    found = Plan(engine=EXACT, why="float64 takes the exact model", precision=precision, machine=machine, work=work)
    if precision == "float64":
        return replace(found, stages=(_exact("the reference; fused kernels and C code have float32"),))
    if machine.is_gpu:
        return _on_gpu(found, network, config, priors)
    return _on_cpu(found, network, config, priors)


def why_not_fused(network: Network, config: Any, machine: Machine) -> str | None:
    """Why the fused kernels cannot evaluate a network; None if they can."""
    if not machine.triton:
        return "it needs triton, which is not installed"
    if network.is_built_in and network.kind not in FUSED_KINDS:
        return f"the charge equilibration of a {network.kind} has no fused kernels"
    if not network.is_built_in:
        wanted = "TensorNet2" if isinstance(config, TensorNet2Config) else "TensorNet"
        return f"its network must be a {wanted}, got {network.kind}"
    return serves.fused_kernels(config)


def why_not_compiled(network: Network, machine: Machine) -> str | None:
    """Why the C code cannot evaluate a network; None if it can."""
    if not network.is_built_in:
        return f"its network must be a {', a '.join(KINDS.values())}, got a {network.kind}"
    if network.head not in HEAD_KINDS:
        return f"its head must be a ScalarHead or a GatedHead, got a {network.head.rpartition('.')[2]}"
    if network.dtype != "float32":
        return f"its weights must be torch.float32, got torch.{network.dtype}"
    return None if machine.compiled else "it needs the compiled library"


def _on_gpu(found: Plan, network: Network, config: Any, priors: Sequence[PriorConfig]) -> Plan:
    reason, precision = why_not_fused(network, config, found.machine), found.precision
    if reason is None:
        if precision == "half" and network.kind == "TensorNet2":
            raise ValueError("precision 'half' is that of a TensorNet's messages, got a TensorNet2")
        why = "fused kernels, and priors beside them" if priors else "fused kernels"
        kernels = plan_kernels(network.kind, config, found.work, precision, found.machine, priors=bool(priors))
        stages = (*kernels.stages, *_priors(priors, "Triton"), *_near(config, found.work))
        return replace(found, engine=FUSED, why=why, kernels=kernels, stages=stages)
    if precision in ON_KERNELS:
        raise ValueError(f"precision {precision!r} needs the fused kernels, which do not serve it: {reason}")
    warning = reason if isinstance(config, TensorNetConfig) else None
    return _general(replace(found, warning=warning), network, reason)


def _on_cpu(found: Plan, network: Network, config: Any, priors: Sequence[PriorConfig]) -> Plan:
    if found.precision in ON_KERNELS:
        raise ValueError(f"precision {found.precision!r} needs a GPU, got a potential on the CPU")
    reason, machine = why_not_compiled(network, found.machine), found.machine
    if reason is None:
        why = "network in C on the CPU, and priors beside it" if priors else "one call into C on the CPU"
        stage = Stage("network", "C, one call", "float32 weights of a network that it serves", "engines/pairs")
        kernel = "C" if machine.pair_kernels else ""
        if network.kind == "QET":
            why = "features in C on the CPU, equilibration and head between the passes"
            stage, kernel = replace(stage, runs="C, a call for each pass; the rest by autograd"), ""
        return replace(found, engine=COMPILED, why=why, stages=(stage, *_priors(priors, kernel)))
    # In plain torch the network of pairs would keep TensorNet2's filters of all edges; the exact model works in blocks.
    return _general(found, network, reason, pairs=machine.pair_kernels or network.kind != "TensorNet2")


def _general(found: Plan, network: Network, reason: str, *, pairs: bool = True) -> Plan:
    """The engines that have no kernels of their own for a network. pairs: whether the network of pairs may serve."""
    if network.has_pairs and pairs:
        stage = Stage("network", "pairs of atoms, by autograd", reason, "the exact model")
        return replace(found, engine=PAIRS, why=f"network of pairs: {reason}", stages=(stage,))
    return replace(found, why=f"exact model: {reason}", stages=(_exact(reason),))


def _exact(why: str) -> Stage:
    return Stage("network", "the exact model, by autograd", why)


def _priors(priors: Sequence[PriorConfig], kernel: str) -> list[Stage]:
    """kernel: the language of the kernel for Coulomb energies; empty where there is none."""
    autograd, stages = "torch, by autograd", []
    for prior in priors:
        direct = kernel and type(prior) is CoulombConfig
        why = "it has a kernel of its own" if direct else "it has no kernel of its own"
        stages.append(Stage(f"prior {prior.name}", kernel if direct else autograd, why, autograd if direct else ""))
    return stages


def _near(config: Any, work: Workload) -> list[Stage]:
    """A list of edges of the network's own, where priors have a longer cutoff."""
    if work.search_cutoff <= config.cutoff:
        return []
    longer = f"priors have a cutoff of {work.search_cutoff:g} Å, the network of {config.cutoff:g} Å"
    return [Stage("list", "one of the network's own", longer, "one for all")]
