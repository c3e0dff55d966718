"""torchmdx: molecular dynamics with neural-network potentials, as one captured GPU step."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from torchmdx.runtime.cpu_memory import wait_briefly
from torchmdx.runtime.former_paths import keep_former_paths

wait_briefly()  # before torch is imported, which reads the setting
keep_former_paths()

if TYPE_CHECKING:
    from torchmdx.ase.calculator import Calculator
    from torchmdx.checkpoints.save_load import load, load_ensemble, save
    from torchmdx.dynamics.dynamics import Dynamics
    from torchmdx.dynamics.relaxation.run import relax
    from torchmdx.dynamics.relaxation.tasks import Relaxed
    from torchmdx.evaluation.evaluate import Result, evaluate
    from torchmdx.models.ensemble import Ensemble
    from torchmdx.models.potential import Potential
    from torchmdx.models.registry import register_model, register_prior
    from torchmdx.models.tensornet import TensorNetConfig
    from torchmdx.models.tensornet2 import TensorNet2Config
    from torchmdx.models.wrap import wrap
    from torchmdx.neighbors.search import EdgeSearch
    from torchmdx.step.captured_step import CapturedStep
    from torchmdx.step.divided_step import DividedStep
    from torchmdx.step.pool import StepPool
    from torchmdx.structures.system import Batch, System

__version__ = "0.1.0"
__all__ = [
    "Batch",
    "Calculator",
    "CapturedStep",
    "DividedStep",
    "Dynamics",
    "EdgeSearch",
    "Ensemble",
    "Potential",
    "Relaxed",
    "Result",
    "StepPool",
    "System",
    "TensorNet2Config",
    "TensorNetConfig",
    "__version__",
    "evaluate",
    "load",
    "load_ensemble",
    "register_model",
    "register_prior",
    "relax",
    "save",
    "wrap",
]

# Imported on first use: importing torch takes seconds, and the command line's help needs none of it.
_LAZY = {
    "Batch": "torchmdx.structures.system",
    "Calculator": "torchmdx.ase.calculator",
    "CapturedStep": "torchmdx.step.captured_step",
    "DividedStep": "torchmdx.step.divided_step",
    "Dynamics": "torchmdx.dynamics.dynamics",
    "EdgeSearch": "torchmdx.neighbors.search",
    "Ensemble": "torchmdx.models.ensemble",
    "Potential": "torchmdx.models.potential",
    "Relaxed": "torchmdx.dynamics.relaxation.tasks",
    "Result": "torchmdx.evaluation.evaluate",
    "StepPool": "torchmdx.step.pool",
    "System": "torchmdx.structures.system",
    "TensorNet2Config": "torchmdx.models.tensornet2",
    "TensorNetConfig": "torchmdx.models.tensornet",
    "evaluate": "torchmdx.evaluation.evaluate",
    "load": "torchmdx.checkpoints.save_load",
    "load_ensemble": "torchmdx.checkpoints.save_load",
    "register_model": "torchmdx.models.registry",
    "register_prior": "torchmdx.models.registry",
    "relax": "torchmdx.dynamics.relaxation.run",
    "save": "torchmdx.checkpoints.save_load",
    "wrap": "torchmdx.models.wrap",
}


def __getattr__(name: str) -> Any:
    """A public name, or a module of the package, imported when it is first used."""
    if name in _LAZY:
        value = globals()[name] = getattr(import_module(_LAZY[name]), name)
        return value
    if not name.startswith("_") and find_spec(f"{__name__}.{name}"):
        # And with it modules in folders, such as torchmdx.models.potential.
        import_module("torchmdx.evaluation.evaluate")
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
