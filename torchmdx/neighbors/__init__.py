"""Neighbour lists: their layout, and the searches that fill them."""

from typing import TYPE_CHECKING

from torchmdx.runtime.public_names import public_names

if TYPE_CHECKING:
    from torchmdx.neighbors.capacity import CapacityError as CapacityError
    from torchmdx.neighbors.edges import Edges as Edges
    from torchmdx.neighbors.search import EdgeSearch as EdgeSearch
else:
    __all__, __getattr__, __dir__ = public_names(__name__)
