"""How a structure is divided into slabs: chosen where atoms are ordered, before the engine allocates."""

from __future__ import annotations

from dataclasses import dataclass

from torchmdx.engines.plan.memory import MARGIN, REACHES


@dataclass
class SlabLayout:
    """rows: atoms of a slab; axis: the cell vector along which slabs follow each other; None until they are chosen.

    Attributes:
        reach: Slabs that are together as thick as the cutoff. With more, windows take less memory, gathers more time.
        margin: Å by which they are thicker, so that atoms can move before they are divided anew.
    """

    reach: int = REACHES[0]
    margin: float = MARGIN
    rows: int | None = None
    axis: int | None = None

    def forget(self) -> None:
        """The next order chooses both again."""
        self.rows = self.axis = None
