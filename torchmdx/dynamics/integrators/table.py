"""All integrators by name."""

from __future__ import annotations

import inspect
from typing import TypeVar

from torchmdx.dynamics.integrators.base import Integrator
from torchmdx.dynamics.integrators.bussi import Bussi
from torchmdx.dynamics.integrators.langevin import Langevin
from torchmdx.dynamics.integrators.verlet import VelocityVerlet

KINDS: dict[str, type[Integrator]] = {kind.name: kind for kind in (VelocityVerlet, Langevin, Bussi)}

Kind = TypeVar("Kind", bound=type[Integrator])


def register_integrator(kind: Kind) -> Kind:
    """Adds a subclass of `Integrator` under its name; a decorator for integrators outside the package.

    Raises:
        TypeError: For other classes and those without a step.
        ValueError: For a name that is taken.
    """
    _require_complete(kind)
    if KINDS.get(kind.name, kind) is not kind:
        raise ValueError(f"an integrator {kind.name!r} exists already: {KINDS[kind.name].__name__}")
    KINDS[kind.name] = kind
    return kind


def integrator_of(given: str | Integrator) -> Integrator:
    """The integrator itself, or the one of a name with its defaults. Raises ValueError, TypeError."""
    if isinstance(given, str):
        if given not in KINDS:
            raise ValueError(f"integrator must be one of {', '.join(KINDS)}, got {given!r}")
        kind = KINDS[given]
        _require_complete(kind)
        return kind()
    if not isinstance(given, Integrator):
        raise TypeError(f"integrator must be a name or an Integrator of torchmdx.dynamics.integrators, got {given!r}")
    return given


def _require_complete(kind: object) -> None:
    if not (inspect.isclass(kind) and issubclass(kind, Integrator)):
        raise TypeError(f"an integrator must be a subclass of Integrator, which makes its steps, got {kind!r}")
    if not isinstance(getattr(kind, "name", None), str):
        raise TypeError(f"an integrator must have a name, got {kind.__name__} without one")
    if missing := sorted(kind.__abstractmethods__):
        raise TypeError(f"an integrator must have {', '.join(missing)}, got {kind.__name__} without")
