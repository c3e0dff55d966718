"""Energies, and forces and stress as their derivatives."""

from typing import TYPE_CHECKING

from torchmdx.runtime.public_names import public_names

if TYPE_CHECKING:
    from torchmdx.evaluation.derivatives import Result as Result
    from torchmdx.evaluation.derivatives import differentiate as differentiate
    from torchmdx.evaluation.derivatives import evaluate as evaluate
else:
    __all__, __getattr__, __dir__ = public_names(__name__)
