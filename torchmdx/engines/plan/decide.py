"""`plan`: which engine and which kernels evaluate a potential, why, and what would run otherwise.

It reads nothing but its arguments: no GPU, no compiler, no backend. What happens at run time, such as a kernel that
cannot be compiled, is shown next to the plan (`StepReport`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchmdx.engines.plan import serves
from torchmdx.engines.plan.kernels import KernelPlan, plan_kernels
from torchmdx.engines.plan.machine import Machine
from torchmdx.engines.plan.request import HEAD_KINDS, KINDS, Candidate, Network, Request
from torchmdx.engines.plan.workload import Stage, Workload
from torchmdx.models.priors.base import PriorConfig
from torchmdx.models.priors.coulomb import CoulombConfig
from torchmdx.models.priors.d2 import D2Config
from torchmdx.models.priors.d3 import D3Config
from torchmdx.models.priors.zbl import ZBLConfig
from torchmdx.models.tensornet import TensorNetConfig
from torchmdx.models.tensornet2 import TensorNet2Config
from torchmdx.runtime.precisions import require_precision

WITHOUT_CHARGES = (ZBLConfig, D2Config, D3Config)  # of priors that need nothing of the network
FUSED, PAIRS, COMPILED, EXACT = BUILT_IN = ("fused", "pairs", "C", "exact")
SHORT = ("launches", "few atoms", "within atoms", "network of edges", "network")  # stages of a plan in a few words


@dataclass(frozen=True, kw_only=True)
class Plan:
    """engine: FUSED, PAIRS, COMPILED, EXACT, or the name of a registered engine. kernels: of the fused engine.

    Attributes:
        warning: Why a network of a kind that has fused kernels does without them on a GPU.
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
    def is_registered(self) -> bool:
        """Whether the engine is from outside the package."""
        return self.engine not in BUILT_IN

    @property
    def short(self) -> str:
        """What runs, in a few words."""
        return "; ".join(stage.runs for stage in self.stages if stage.name in SHORT)

    def with_kernels(self, kernels: KernelPlan, capacity: int) -> Plan:
        """The same with the kernels for `capacity` edges; stages that do not depend on these stay."""
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
    *,
    registered: Sequence[Candidate] = (),
    engine: str | None = None,
) -> Plan:
    """What runs for a network with priors and this work, in this precision, on this machine.

    Args:
        network: What the potential has, where that may differ from what its configuration says.
        registered: Engines from outside the package; the first that serves is taken, except in float64.
        engine: The name of the only one that may be taken.

    Raises:
        ValueError: For a precision that is unknown, and for an engine that is unknown or does not serve.
    """
    network = network or Network.of_config(config)
    request = Request(
        config=config, priors=tuple(priors), work=work, precision=require_precision(precision), machine=machine,
        network=network,
    )  # fmt: skip
    if engine is not None:
        return _named(engine, request, registered)
    refused = []
    for candidate in registered if precision != "float64" else ():
        reason = candidate.why_not(request)
        if reason is None:
            return _registered(candidate, request, "it is registered, and serves")
        refused.append(Stage(f"engine {candidate.name}", "not used", reason))
    found = _built_in(request)
    return replace(found, stages=(*found.stages, *refused))


def _built_in(request: Request) -> Plan:
    found = _empty(request, EXACT, "float64 takes the exact model")
    if request.precision == "float64" and request.machine.is_gpu:
        return replace(found, stages=(_exact("the reference; fused kernels have float32"),))
    on_device = _on_gpu if request.machine.is_gpu else _on_cpu
    return on_device(found, request.network, request.config, request.priors)


def _empty(request: Request, engine: str, why: str) -> Plan:
    """A plan without stages."""
    return Plan(engine=engine, why=why, precision=request.precision, machine=request.machine, work=request.work)


def _registered(candidate: Candidate, request: Request, why: str) -> Plan:
    stage = Stage("network", candidate.name, why, "an engine of the package")
    return replace(_empty(request, candidate.name, f"registered engine {candidate.name}"), stages=(stage,))


def require_known(engine: str | None, registered: Sequence[Candidate]) -> None:
    """Raises ValueError for the name of an engine that is neither of the package nor registered."""
    known = (*BUILT_IN, *(candidate.name for candidate in registered))
    if engine is not None and engine not in known:
        raise ValueError(f"engine must be one of {', '.join(known)}, got {engine!r}")


def _named(engine: str, request: Request, registered: Sequence[Candidate]) -> Plan:
    """The plan with an engine that was asked for by name."""
    require_known(engine, registered)
    others = {candidate.name: candidate for candidate in registered}
    asked = "it was asked for by name"
    reason: str | None = None
    if engine in others:
        reason = others[engine].why_not(request)
        if reason is None:
            return _registered(others[engine], request, asked)
    elif engine == EXACT:
        return replace(_empty(request, EXACT, f"exact model: {asked}"), stages=(_exact(asked),))
    elif engine == PAIRS and request.network.has_pairs:
        stage = Stage("network", "pairs of atoms, by autograd", asked, "the exact model")
        return replace(_empty(request, PAIRS, f"network of pairs: {asked}"), stages=(stage,))
    else:
        found = _built_in(request)
        if found.engine == engine:
            return found
        reason = found.why
    raise ValueError(f"engine {engine!r} can't evaluate this potential here: {reason}")


def why_not_fused(network: Network, config: Any, machine: Machine) -> str | None:
    """Why the fused kernels cannot evaluate a network; None if they can."""
    if not machine.triton:
        return "it needs triton, which is not installed"
    if network.kind == "QET":
        return "the charge equilibration of a QET has no fused kernels"
    if not network.is_built_in:
        wanted = "TensorNet2" if isinstance(config, TensorNet2Config) else "TensorNet"
        return f"its network must be a {wanted}, got {network.kind}"
    return network.unknown or _why_not_head(network) or serves.fused_kernels(config)


def _why_not_head(network: Network) -> str | None:
    if network.head in HEAD_KINDS:
        return None
    return f"its head must be a ScalarHead or a GatedHead, got a {network.head.rpartition('.')[2]}"


def why_not_compiled(network: Network, machine: Machine) -> str | None:
    """Why the C code cannot evaluate a network; None if it can."""
    if not network.is_built_in:
        return f"its network must be a {', a '.join(KINDS.values())}, got a {network.kind}"
    if (reason := network.unknown or _why_not_head(network)) is not None:
        return reason
    if network.dtype not in ("float32", "float64"):
        return f"its weights must be torch.float32 or torch.float64, got torch.{network.dtype}"
    return None if machine.compiled else "it needs the compiled library"


def _on_gpu(found: Plan, network: Network, config: Any, priors: Sequence[PriorConfig]) -> Plan:
    reason = why_not_fused(network, config, found.machine)
    if reason is None:
        why = "fused kernels, priors separately" if priors else "fused kernels"
        between = between_passes(network.kind, priors)
        kernels = plan_kernels(network.kind, config, found.work, found.machine, priors=between)
        others = [] if kernels.one_launch else _priors(priors, "Triton", found.work)
        stages = (*kernels.stages, *others, *_near(config, found.work), *_uncertainty(found.work, kernels))
        return replace(found, engine=FUSED, why=why, kernels=kernels, stages=stages)
    warning = reason if isinstance(config, TensorNetConfig) else None
    return _general(replace(found, warning=warning), network, reason)


def _on_cpu(found: Plan, network: Network, config: Any, priors: Sequence[PriorConfig]) -> Plan:
    reason, machine = why_not_compiled(network, found.machine), found.machine
    if reason is None:
        why = "network in C on the CPU, priors separately" if priors else "one call into C on the CPU"
        stage = Stage("network", "C, one call", f"{network.dtype} weights of a network that it serves", "engines/pairs")
        kernel = "C" if machine.pair_kernels else ""
        if network.kind == "QET":
            why = "features in C on the CPU, equilibration and head between the passes"
            stage, kernel = replace(stage, runs="C, a call for each pass; the rest by autograd"), ""
        return replace(found, engine=COMPILED, why=why, stages=(stage, *_priors(priors, kernel, found.work)))
    if found.precision == "float64":
        return replace(found, why=f"float64 takes the exact model: {reason}", stages=(_exact(reason),))
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


def between_passes(kind: str, priors: Sequence[PriorConfig]) -> bool:
    """Whether there are priors that no single launch of this kind of network evaluates.

    That of a TensorNet2 has Coulomb energies of predicted charges, of all pairs where nothing is periodic.
    """
    if kind != "TensorNet2" or len(priors) != 1 or not isinstance(priors[0], CoulombConfig):
        return bool(priors)
    prior = priors[0]
    return type(prior) is not CoulombConfig or prior.charges != "predicted" or prior.cut_in_vacuum


def apart_from_network(priors: Sequence[PriorConfig]) -> bool:
    """Whether priors without kernels run in a branch parallel to the network: they need nothing of it."""
    return bool(priors) and all(type(prior) in WITHOUT_CHARGES for prior in priors)


def _priors(priors: Sequence[PriorConfig], kernel: str, work: Workload) -> list[Stage]:
    """kernel: the language of the kernel for Coulomb energies; empty where there is none."""
    autograd, stages = "torch, by autograd", []
    others = [prior for prior in priors if not (kernel and type(prior) is CoulombConfig)]
    branch = kernel == "Triton" and apart_from_network(others)
    for prior in priors:
        name = f"prior {prior.name}"
        if prior not in others:
            stages.append(Stage(name, kernel, "it has a kernel of its own", autograd))
            if isinstance(prior, CoulombConfig) and prior.sums_lattice and work.periodic:
                runs = "Triton, a branch parallel to the pairs" if kernel == "Triton" else "torch, products of matrices"
                stages.append(Stage("Ewald sum", runs, "of periodic systems, over the reciprocal lattice", autograd))
        elif branch:
            runs = f"{autograd}, a branch parallel to the network"
            stages.append(Stage(name, runs, "it needs nothing of the network", "one after the other"))
        else:
            stages.append(Stage(name, autograd, "it has no kernel of its own"))
    return stages


def _uncertainty(work: Workload, kernels: KernelPlan) -> list[Stage]:
    """How the uncertainty of the energy is computed from the inputs of the last layer."""
    if not work.last_inputs:
        return []
    name, behind = "uncertainty", "Triton, after the launch"
    if kernels.one_launch and kernels.clusters is None:
        return [Stage(name, "CUDA C++, in the launch", "its blocks have the inputs of the last layer", behind)]
    if kernels.one_launch:
        return [Stage(name, behind, "its blocks store the inputs of the last layer")]
    why = "kernels of the head store the inputs of the last layer before the backward pass"
    return [Stage(name, "Triton, a branch", why)]


def _near(config: Any, work: Workload) -> list[Stage]:
    """A list of edges of the network's own, where priors have a longer cutoff."""
    if work.search_cutoff <= config.cutoff:
        return []
    longer = f"priors have a cutoff of {work.search_cutoff:g} Å, the network of {config.cutoff:g} Å"
    return [Stage("list", "one of the network's own", longer, "one for all")]
