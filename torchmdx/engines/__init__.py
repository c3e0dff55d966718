"""Ways to evaluate a potential with fixed shapes, and how an engine from outside the package joins."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchmdx.engines.engine import Engine, Outputs
    from torchmdx.engines.plan.request import Request
    from torchmdx.engines.registry import register_engine, unregister_engine

__all__ = ["Engine", "Outputs", "Request", "register_engine", "unregister_engine"]

# Imported on first use: a plan needs no engine.
_LAZY = {
    "Engine": "torchmdx.engines.engine",
    "Outputs": "torchmdx.engines.engine",
    "Request": "torchmdx.engines.plan.request",
    "register_engine": "torchmdx.engines.registry",
    "unregister_engine": "torchmdx.engines.registry",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
