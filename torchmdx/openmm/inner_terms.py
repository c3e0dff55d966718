"""The bonded terms of a force inside a region, and which of two forces on the same atoms is the addition."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class InnerTerms:
    """The terms of one bonded force inside the region.

    Attributes:
        index: Of the force in the System.
        parameters: Its global parameters.
        terms: Atoms of each term.
    """

    index: int
    kind: str
    name: str
    parameters: tuple[str, ...]
    terms: list[tuple[int, ...]]

    @property
    def title(self) -> str:
        title = self.kind if self.name in (self.kind, "") else f"{self.kind} {self.name!r}"
        return f"{title} (force {self.index})"

    def is_smaller(self, others: Iterable[InnerTerms]) -> bool:
        """Whether it rather than the others is the addition: custom ones first, then those with fewer terms."""
        rank = "Custom" not in self.kind, len(self.terms)
        return any(rank <= ("Custom" not in other.kind, len(other.terms)) for other in others)


def named(term: Iterable[int]) -> str:
    """The atoms of a term in a message."""
    return "-".join(map(str, term))
