"""The captured step and its parts."""

from typing import TYPE_CHECKING

from torchmdx.runtime.public_names import public_names

if TYPE_CHECKING:
    from torchmdx.step.batch_pool import BatchPool as BatchPool
    from torchmdx.step.captured_step import CapturedStep as CapturedStep
    from torchmdx.step.divided_step import DividedReport as DividedReport
    from torchmdx.step.divided_step import DividedStep as DividedStep
    from torchmdx.step.domain_step import DomainResult as DomainResult
    from torchmdx.step.domain_step import DomainStep as DomainStep
    from torchmdx.step.pool import StepPool as StepPool
    from torchmdx.step.report import StepReport as StepReport
    from torchmdx.step.results import AuditError as AuditError
    from torchmdx.step.results import GraphRefused as GraphRefused
    from torchmdx.step.results import NonFiniteError as NonFiniteError
    from torchmdx.step.results import OutOfDeviceMemory as OutOfDeviceMemory
    from torchmdx.step.results import SpreadError as SpreadError
    from torchmdx.step.results import StepError as StepError
    from torchmdx.step.results import StepResult as StepResult
    from torchmdx.step.results import UncertaintyError as UncertaintyError
else:
    __all__, __getattr__, __dir__ = public_names(__name__)
