"""The engine that engines/plan decides on for a potential on its device.

An engine reads positions, cell and edges from fixed buffers and never synchronises with the host, so its work can be
captured.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import replace

from torchmdx.engines.cpu.engine import CpuEngine
from torchmdx.engines.cpu.qet import CpuQETEngine
from torchmdx.engines.cpu.with_priors import CpuPriorEngine
from torchmdx.engines.engine import Engine
from torchmdx.engines.ensemble import EnsembleEngine
from torchmdx.engines.exact import ExactEngine
from torchmdx.engines.gpu.compile_ahead import compile_ahead
from torchmdx.engines.gpu.engine import GpuEngine, make_kernels, workload_of
from torchmdx.engines.gpu.with_priors import GpuPriorEngine
from torchmdx.engines.pairs.engine import PairEngine
from torchmdx.engines.plan import Machine, Network, Plan, plan
from torchmdx.engines.plan.decide import COMPILED, FUSED, PAIRS
from torchmdx.engines.plan.members import IN_TURN, TOGETHER
from torchmdx.engines.registry import ENGINES, registered
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.models.priors.base import KeptChoice, Prior
from torchmdx.models.priors.coulomb import Coulomb, CoulombConfig
from torchmdx.models.qet import QET
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
    engine: str | None = None,
    memory: int = 0,
) -> Plan:
    """The plan for a potential and a batch, on their device or another machine. capacity: slots for edges.

    The engine does not depend on the capacity, as some of its kernels do. engine: its name; None: the fastest. memory:
    bytes that an evaluation may take; 0: what the device has.

    Raises:
        ValueError: For a precision or an engine that is unknown or does not serve.
    """
    work = workload_of(batch, capacity, len(batch.atomic_numbers.unique()), stress=stress, alone=alone)
    work = replace(
        work,
        search_cutoff=potential.search_cutoff(batch),
        last_inputs=potential.uncertainty is not None,
        memory=memory,
    )
    network = Network.of(potential)
    if machine is None:
        coulomb = any(type(prior) is CoulombConfig for prior in potential.prior_configs)
        known = network.is_built_in
        machine = Machine.of(potential.device, code=known, dtype=network.dtype, pair_kernels=coulomb)
    facts = (potential.config, potential.prior_configs, work, precision, machine, network)
    return plan(*facts, registered=registered(), engine=engine)


def choose_engine(
    potential: Potential,
    batch: Batch,
    *,
    stress: bool,
    precision: str,
    machine: Machine | None = None,
    engine: str | None = None,
    memory: int = 0,
    capacity: int = 0,
    early: bool = False,
) -> tuple[Engine, str]:
    """The engine of the plan for this potential on its device, and why it is that one.

    Args:
        machine: None: that of the device.
        engine: Its name; None: the fastest.
        memory, capacity: As for `plan_for`.
        early: Kernels of CUDA C++ are compiled while the engine is made.
    """
    if batch.positions.device.type == "cpu":
        keep_freed_memory()
    options = dict(stress=stress, machine=machine, engine=engine, memory=memory, capacity=capacity)
    found = plan_for(potential, batch, precision=precision, **options)  # type: ignore[arg-type]
    if found.warning is not None:
        say_slower(found.warning)
    if early and found.kernels is not None and found.engine == FUSED and potential.device.type == "cuda":
        atoms, slots = batch.num_atoms, max(capacity, 1)
        also = dict(stress=stress, uncertainty=potential.uncertainty is not None)
        compile_ahead(found.kernels, potential.config, atoms, slots, potential.device, **also)
    made = _engine(found, potential, batch, stress)
    made.plan = found
    if isinstance(made, GpuEngine | GpuPriorEngine):
        made.model.memory = memory
    return made, found.why


def _engine(found: Plan, potential: Potential, batch: Batch, stress: bool) -> Engine:
    if found.is_registered:
        return ENGINES[found.engine].made(potential, batch, stress=stress, precision=found.precision)
    if found.engine == FUSED and potential.prior_configs:
        model = make_kernels(potential, priors=True)
        return GpuPriorEngine(model, potential, batch, stress=stress)
    if found.engine == FUSED:
        return GpuEngine(potential, batch, stress=stress)
    if found.engine == PAIRS:
        return PairEngine(potential, batch, stress=stress)
    if found.engine == COMPILED and isinstance(potential.network, QET):
        return CpuQETEngine(potential, batch, stress=stress)
    if found.engine == COMPILED:
        return (CpuPriorEngine if potential.prior_configs else CpuEngine)(potential, batch, stress=stress)
    return ExactEngine(potential, batch, stress=stress)


@functools.cache
def say_slower(reason: str) -> None:
    """Logs, once for each reason, that a network of a kind that has fused kernels does without them."""
    log.warning("a potential is evaluated several times slower than by the fused GPU kernels: %s", reason)


def _single(engine: Engine) -> list[Engine]:
    """The engines of the members of an ensemble, or the one of a potential."""
    return engine.engines if isinstance(engine, EnsembleEngine) else [engine]


def slower_because(engine: Engine) -> str | None:
    """Why a network of a kind that has fused kernels does without them on a GPU; None if it does not."""
    plans = (each.plan for each in _single(engine))
    return next((each.warning for each in plans if each is not None and each.warning), None)


def from_outside(engine: Engine) -> bool:
    """Whether an engine, or that of a member of an ensemble, was registered by another package."""
    return any(each.plan is not None and each.plan.is_registered for each in _single(engine))


def planned_and_actual(engine: Engine) -> str | None:
    """The plan of an engine, and what of it could not be had at run time; None for an engine without a plan."""
    if isinstance(engine, EnsembleEngine):
        return "\n".join(dict.fromkeys(filter(None, map(planned_and_actual, engine.engines)))) or None
    if engine.plan is None:
        return None
    outcomes = engine.model.outcomes if isinstance(engine, GpuEngine | GpuPriorEngine) else []
    return "\n".join([str(engine.plan), *(f"  instead: {outcome}" for outcome in outcomes)])


def ewald_of(engine: Engine) -> str | None:
    """The Ewald sums of an engine as text; None if there are none. Their vectors are chosen at the first evaluation."""
    if isinstance(engine, EnsembleEngine):
        return "\n".join(dict.fromkeys(filter(None, map(ewald_of, engine.engines)))) or None
    potential = getattr(engine, "potential", None)
    priors = potential.priors if isinstance(potential, Potential) else ()
    return "\n".join(prior.sums for prior in priors if isinstance(prior, Coulomb) and prior.sums) or None


def sums_fit(engine: Engine, batch: Batch) -> bool:
    """Whether what an engine's lattice sums have chosen serves the cells of a batch. Reads the device."""
    return all(kept.latest is None or bool(kept.latest.fits(batch)) for kept in _lists_of(engine))


def forget_sums(engine: Engine) -> None:
    """Frees the vectors of an engine's Ewald sums once no graph has them; the next launch chooses others."""
    for kept in _lists_of(engine):
        kept.forget()


def _lists_of(engine: Engine) -> list[KeptChoice]:
    if isinstance(engine, EnsembleEngine):
        return [kept for each in engine.engines for kept in _lists_of(each)]
    potential = getattr(engine, "potential", None)
    priors = potential.priors if isinstance(potential, Potential) else ()
    return [prior.kept for prior in priors if isinstance(prior, Prior) and prior.kept is not None]


def engine_for(
    potential: Potential | Ensemble,
    batch: Batch,
    *,
    stress: bool,
    precision: str,
    engine: str | None = None,
    memory: int = 0,
    capacity: int = 0,
) -> tuple[Engine, str]:
    """As `choose_engine`, for a potential or an ensemble, whose members keep all tensors, whatever the memory."""
    if not isinstance(potential, Ensemble):
        options = dict(engine=engine, memory=memory, capacity=capacity)
        settings = dict(stress=stress, precision=precision, early=True)
        made, why = choose_engine(potential, batch, **settings, **options)  # type: ignore[arg-type]
        if isinstance(made, GpuEngine | GpuPriorEngine):
            made.alone = True
        return made, why
    chosen = [choose_engine(member, batch, stress=stress, precision=precision, engine=engine) for member in potential]
    reasons = list(dict.fromkeys(why for _, why in chosen))
    together = EnsembleEngine(
        [made for made, _ in chosen], batch, stress=stress, spread_factors=potential.spread_factors
    )
    order = TOGETHER if together.streams else IN_TURN
    return together, f"{len(chosen)} members {order}: {' and '.join(reasons)}"


def exact_engine_for(potential: Potential | Ensemble, batch: Batch, *, stress: bool, instead_of: Engine) -> Engine:
    """The exact model, of every member of an ensemble, with the plans of the engine that it replaces."""
    members = list(potential) if isinstance(potential, Ensemble) else [potential]
    engines = [ExactEngine(member, batch, stress=stress) for member in members]
    for engine, replaced in zip(engines, _single(instead_of), strict=True):
        engine.plan = replaced.plan
    if not isinstance(potential, Ensemble):
        return engines[0]
    return EnsembleEngine(engines, batch, stress=stress, spread_factors=potential.spread_factors)
