"""Relaxations of many structures at once, in batches of a fixed shape."""

from typing import TYPE_CHECKING

from torchmdx.runtime.public_names import public_names

if TYPE_CHECKING:
    from torchmdx.dynamics.relaxation.run import relax as relax
    from torchmdx.dynamics.relaxation.tasks import Relaxed as Relaxed
else:
    __all__, __getattr__, __dir__ = public_names(__name__)
