"""ASE: a calculator for any potential, and multiple time steps."""

from typing import TYPE_CHECKING

from torchmdx.runtime.public_names import public_names

if TYPE_CHECKING:
    from torchmdx.ase.calculator import Calculator as Calculator
    from torchmdx.ase.multiple_steps import MultipleTimeSteps as MultipleTimeSteps
else:
    __all__, __getattr__, __dir__ = public_names(__name__)
