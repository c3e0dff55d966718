"""The engine that engines/plan decides on for a potential on its device.

An engine reads positions, cell and edges from fixed buffers and never synchronises with the host, so its work can be
captured.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import replace

from torchmdx.engines.cpu.engine import CompiledEngine
from torchmdx.engines.cpu.with_priors import CompiledPriorEngine
from torchmdx.engines.engine import Engine
from torchmdx.engines.ensemble import EnsembleEngine
from torchmdx.engines.exact import ModelEngine
from torchmdx.engines.gpu.engine import KernelEngine, make_kernels, workload_of
from torchmdx.engines.gpu.with_priors import PriorKernelEngine
from torchmdx.engines.pairs.engine import PairwiseEngine
from torchmdx.engines.plan import Machine, Network, Plan, plan
from torchmdx.engines.plan.decide import COMPILED, FUSED, PAIRS
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.runtime.cpu_memory import keep_freed_memory
from torchmdx.structures.system import Batch

log = logging.getLogger(__name__)


def plan_for(
    potential: Potential,
    batch: Batch,
    *,
    stress: bool,
    precision: str,
    capacity: int = 0,
    alone: bool = True,
    machine: Machine | None = None,
) -> Plan:
    """The plan for a potential and a batch, on their device or another machine. capacity: slots for edges.

    The engine does not depend on the capacity, as some of its kernels do. Raises ValueError for a precision that is
    unknown or not served.
    """
    work = workload_of(batch, capacity, len(batch.atomic_numbers.unique()), stress=stress, alone=alone)
    work = replace(work, search_cutoff=potential.search_cutoff(batch))
    network = Network.of(potential)
    machine = machine or Machine.of(potential.device, code=network.is_built_in and precision != "float64")
    return plan(potential.config, potential.prior_configs, work, precision, machine, network)


def choose_engine(
    potential: Potential, batch: Batch, *, stress: bool, precision: str, machine: Machine | None = None
) -> tuple[Engine, str]:
    """The engine of the plan for this potential on its device, and why it is that one.

    machine: None: that of the device.
    """
    if batch.positions.device.type == "cpu":
        keep_freed_memory()
    found = plan_for(potential, batch, stress=stress, precision=precision, machine=machine)
    if found.warning is not None:
        say_slower(found.warning)
    engine = _engine(found, potential, batch, stress)
    engine.plan = found
    return engine, found.why


def _engine(found: Plan, potential: Potential, batch: Batch, stress: bool) -> Engine:
    if found.engine == FUSED and potential.prior_configs:
        model = make_kernels(potential, found.precision, priors=True)
        return PriorKernelEngine(model, potential, batch, stress=stress)
    if found.engine == FUSED:
        return KernelEngine(potential, batch, stress=stress, precision=found.precision)
    if found.engine == PAIRS:
        return PairwiseEngine(potential, batch, stress=stress)
    if found.engine == COMPILED:
        return (CompiledPriorEngine if potential.prior_configs else CompiledEngine)(potential, batch, stress=stress)
    return ModelEngine(potential, batch, stress=stress)


@functools.cache
def say_slower(reason: str) -> None:
    """Logs, once for each reason, that a network of a kind that has fused kernels does without them."""
    log.warning("a potential is evaluated several times slower than by the fused GPU kernels: %s", reason)


def slower_because(engine: Engine) -> str | None:
    """Why a network of a kind that has fused kernels does without them on a GPU; None if it does not."""
    engines = engine.engines if isinstance(engine, EnsembleEngine) else [engine]
    return next((each.plan.warning for each in engines if each.plan is not None and each.plan.warning), None)


def planned_and_actual(engine: Engine) -> str | None:
    """The plan of an engine, and what of it could not be had at run time; None for an engine without a plan."""
    if isinstance(engine, EnsembleEngine):
        return "\n".join(dict.fromkeys(filter(None, map(planned_and_actual, engine.engines)))) or None
    if engine.plan is None:
        return None
    outcomes = engine.model.outcomes if isinstance(engine, KernelEngine | PriorKernelEngine) else []
    return "\n".join([str(engine.plan), *(f"  instead: {outcome}" for outcome in outcomes)])


def engine_for(potential: Potential | Ensemble, batch: Batch, *, stress: bool, precision: str) -> tuple[Engine, str]:
    """As `choose_engine`, for a potential or an ensemble."""
    if not isinstance(potential, Ensemble):
        engine, why = choose_engine(potential, batch, stress=stress, precision=precision)
        if isinstance(engine, KernelEngine):
            engine.alone = True
        return engine, why
    chosen = [choose_engine(member, batch, stress=stress, precision=precision) for member in potential]
    reasons = list(dict.fromkeys(why for _, why in chosen))
    together = EnsembleEngine(
        [engine for engine, _ in chosen], batch, stress=stress, spread_factors=potential.spread_factors
    )
    order = "side by side" if together.streams else "one after the other"
    return together, f"{len(chosen)} members {order}: {' and '.join(reasons)}"


def exact_engine_for(potential: Potential | Ensemble, batch: Batch, *, stress: bool) -> Engine:
    """The exact model, of every member of an ensemble."""
    if not isinstance(potential, Ensemble):
        return ModelEngine(potential, batch, stress=stress)
    engines = [ModelEngine(member, batch, stress=stress) for member in potential]
    return EnsembleEngine(engines, batch, stress=stress, spread_factors=potential.spread_factors)
