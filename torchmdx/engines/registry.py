"""Engines from outside the package: how one joins, and how the plan asks for it.

After `register_engine("fused_painn", serves, make)` the plan of every potential that `serves` accepts names this
engine, and a step evaluates with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchmdx.engines.engine import Engine
from torchmdx.engines.plan.decide import BUILT_IN, require_known
from torchmdx.engines.plan.request import Request

if TYPE_CHECKING:
    from torchmdx.models.potential import Potential
    from torchmdx.structures.system import Batch

Serves = Callable[[Request], str | None]
Make = Callable[..., Engine]


@dataclass(frozen=True)
class RegisteredEngine:
    """name: what plans and reports call it. The others are those of `register_engine`."""

    name: str
    serves: Serves
    make: Make
    priors: bool = False
    domains: bool = False
    last_inputs: bool = False

    def why_not(self, request: Request) -> str | None:
        """Why it cannot evaluate what is requested; None if it can. Raises TypeError for another answer."""
        if request.priors and not self.priors:
            return f"it evaluates no priors, got {', '.join(prior.name for prior in request.priors)}"
        if request.work.domain and not self.domains:
            return "it evaluates whole systems, got a domain"
        if request.work.last_inputs and not self.last_inputs:
            return "it does not return the inputs of the last layer, which the uncertainty of the energy needs"
        reason = self.serves(request)
        if reason is not None and not (isinstance(reason, str) and reason):
            wanted = "None, or the reason why the engine does not serve"
            raise TypeError(f"serves of the engine {self.name} must return {wanted}, got {reason!r}")
        return reason

    def made(self, potential: Potential, batch: Batch, *, stress: bool, precision: str) -> Engine:
        """Its engine for a batch. Raises TypeError for an object that lacks a part of `Engine`."""
        engine = self.make(potential, batch, stress=stress, precision=precision)
        missing = [part for part in ("name", "table_error", "reserve", "run") if not hasattr(engine, part)]
        if missing:
            raise TypeError(
                f"the engine {self.name} must be made as an Engine, got a {type(engine).__name__} without "
                f"{', '.join(missing)}"
            )
        return engine


ENGINES: dict[str, RegisteredEngine] = {}


def register_engine(
    name: str,
    serves: Serves,
    make: Make,
    *,
    priors: bool = False,
    domains: bool = False,
    last_inputs: bool = False,
) -> None:
    """Registers an engine under a name, for the plan of every potential that it serves.

    The first registered engine that serves is preferred to those of the package, except in float64, which takes the
    exact model. The first evaluation of a step is compared with the exact model. `torchmdx.engines.conformance` tests
    an engine. A registration is valid in its process.

    Args:
        serves: serves(request) returns None if the engine evaluates what is requested, else the reason why not, for
            plans and reports. A `torchmdx.engines.Request` holds facts: config, priors, work, precision, machine,
            network.
        make: make(potential, batch, stress=..., precision=...) returns an `Engine`.
        priors: Whether the engine evaluates priors too; otherwise it is not asked about potentials with priors.
        domains: Whether it evaluates a part of a system (`Domain`); otherwise it is not asked about domains.
        last_inputs: Whether it returns the inputs of the last layer (`Outputs.last_inputs`) for a potential with an
            uncertainty; otherwise it is not asked about steps with `uncertainty=True`.

    Raises:
        ValueError: For a name that is taken.
        TypeError: For arguments that cannot be called.
    """
    if not (isinstance(name, str) and name.isidentifier()):
        raise ValueError(f"an engine's name must consist of letters, digits and _, got {name!r}")
    for argument, value in (("serves", serves), ("make", make)):
        if not callable(value):
            raise TypeError(f"{argument} of the engine {name} must be a function, got {value!r}")
    if name in BUILT_IN:
        raise ValueError(f"an engine's name must be none of {', '.join(BUILT_IN)}, got {name!r}")
    taken = ENGINES.get(name)
    if taken is not None and _place(taken.make) != _place(make):  # the same twice: a notebook cell that runs again
        raise ValueError(f"the engine name {name!r} must be new, got that of {_place(taken.make)}")
    ENGINES[name] = RegisteredEngine(name, serves, make, priors, domains, last_inputs)


def unregister_engine(name: str) -> None:
    """Forgets a registered engine; steps that use it keep it.

    Raises:
        ValueError: For a name that is not registered.
    """
    if name not in ENGINES:
        raise ValueError(f"the engine must be one of {', '.join(ENGINES) or 'those registered: none'}, got {name!r}")
    del ENGINES[name]


def registered() -> tuple[RegisteredEngine, ...]:
    """All registered engines, in order of registration."""
    return tuple(ENGINES.values())


def require_engine(name: str | None) -> None:
    """Raises ValueError for the name of an engine that is neither of the package nor registered; None is no name."""
    require_known(name, registered())


def _place(make: Any) -> str:
    return f"{getattr(make, '__module__', '?')}.{getattr(make, '__qualname__', type(make).__name__)}"
