"""Structures: validated systems, batches of them, their parts, and units."""

from typing import TYPE_CHECKING

from torchmdx.runtime.public_names import public_names

if TYPE_CHECKING:
    from torchmdx.structures import units as units
    from torchmdx.structures.domain import Domain as Domain
    from torchmdx.structures.system import Batch as Batch
    from torchmdx.structures.system import System as System
else:
    __all__, __getattr__, __dir__ = public_names(__name__)
