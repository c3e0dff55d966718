"""torchmdx: molecular dynamics with neural-network potentials, as one captured GPU step."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from torchmdx.runtime.cpu_memory import wait_briefly

wait_briefly()  # before torch is imported, which reads the setting

from torchmdx.evaluate import Result, evaluate
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.models.registry import register_model, register_prior
from torchmdx.models.tensornet import TensorNetConfig
from torchmdx.models.tensornet2 import TensorNet2Config
from torchmdx.moved import keep_former_paths
from torchmdx.system import Batch, System

if TYPE_CHECKING:
    from torchmdx.ase_calculator import Calculator
    from torchmdx.checkpoints.save_load import load, load_ensemble, save
    from torchmdx.neighbors.search import EdgeSearch
    from torchmdx.step.captured_step import CapturedStep
    from torchmdx.step.pool import StepPool

__version__ = "0.1.0"
__all__ = [
    "Batch",
    "Calculator",
    "CapturedStep",
    "EdgeSearch",
    "Ensemble",
    "Potential",
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
    "save",
]

keep_former_paths()

# Imported on first use: importing ASE takes half a second.
_LAZY = {
    "Calculator": "torchmdx.ase_calculator",
    "CapturedStep": "torchmdx.step.captured_step",
    "EdgeSearch": "torchmdx.neighbors.search",
    "StepPool": "torchmdx.step.pool",
    "load": "torchmdx.checkpoints.save_load",
    "load_ensemble": "torchmdx.checkpoints.save_load",
    "save": "torchmdx.checkpoints.save_load",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'torchmdx' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
