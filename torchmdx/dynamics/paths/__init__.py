"""Reaction paths between two minima, and their transition states."""

from typing import TYPE_CHECKING

from torchmdx.runtime.public_names import public_names

if TYPE_CHECKING:
    from torchmdx.dynamics.paths.reaction import ReactionPath as ReactionPath
    from torchmdx.dynamics.paths.run import neb as neb
else:
    __all__, __getattr__, __dir__ = public_names(__name__)
