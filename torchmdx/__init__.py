"""torchmdx: molecular dynamics with neural-network potentials, as one captured GPU step."""

from typing import TYPE_CHECKING

from torchmdx.runtime.cpu_memory import wait_briefly
from torchmdx.runtime.former_paths import keep_former_paths
from torchmdx.runtime.public_names import public_names

wait_briefly()  # before torch is imported, which reads the setting
keep_former_paths()

__version__ = "0.1.0"

if TYPE_CHECKING:
    from torchmdx.ase.calculator import Calculator as Calculator
    from torchmdx.checkpoints.save_load import load as load
    from torchmdx.checkpoints.save_load import load_ensemble as load_ensemble
    from torchmdx.checkpoints.save_load import save as save
    from torchmdx.dynamics.dynamics import Dynamics as Dynamics
    from torchmdx.dynamics.paths.run import neb as neb
    from torchmdx.dynamics.relaxation.run import relax as relax
    from torchmdx.dynamics.relaxation.tasks import Relaxed as Relaxed
    from torchmdx.evaluation.derivatives import Result as Result
    from torchmdx.evaluation.derivatives import evaluate as evaluate
    from torchmdx.models.ensemble import Ensemble as Ensemble
    from torchmdx.models.potential import Potential as Potential
    from torchmdx.models.registry import register_model as register_model
    from torchmdx.models.registry import register_prior as register_prior
    from torchmdx.models.tensornet import TensorNetConfig as TensorNetConfig
    from torchmdx.models.tensornet2 import TensorNet2Config as TensorNet2Config
    from torchmdx.models.wrapping import wrap as wrap
    from torchmdx.neighbors.search import EdgeSearch as EdgeSearch
    from torchmdx.report.view.notebook import view as view
    from torchmdx.step.captured_step import CapturedStep as CapturedStep
    from torchmdx.step.divided_step import DividedStep as DividedStep
    from torchmdx.step.pool import StepPool as StepPool
    from torchmdx.structures.system import Batch as Batch
    from torchmdx.structures.system import System as System
else:
    # Imported on first use: importing torch takes seconds, and the command line's help needs none of it.
    __all__, __getattr__, __dir__ = public_names(__name__)
