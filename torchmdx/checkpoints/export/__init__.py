"""Potentials compiled for C++, with torch's AOTInductor."""

from typing import TYPE_CHECKING

from torchmdx.runtime.public_names import public_names

if TYPE_CHECKING:
    from torchmdx.checkpoints.export.package import Exported as Exported
    from torchmdx.checkpoints.export.package import export as export
    from torchmdx.checkpoints.export.program import Program as Program
else:
    __all__, __getattr__, __dir__ = public_names(__name__)
