"""What a reader found in a foreign checkpoint, for a person."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchmdx.models.potential import Potential


class UnsupportedCheckpoint(ValueError):
    """A torchmd-net checkpoint that is whole, but holds something torchmdx cannot represent."""


@dataclass
class Report:
    """What was taken over as it was, what was changed on the way and how, and what was left behind and why."""

    source: str
    sha256: str
    read: list[str] = field(default_factory=list)
    remapped: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"source: {self.source}", f"sha256: {self.sha256}"]
        for title in ("read", "remapped", "ignored"):
            entries = getattr(self, title)
            lines += [f"{title}:" if entries else f"{title}: nothing", *(f"  - {entry}" for entry in entries)]
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class Reading:
    """A potential, and the report on how it was read."""

    potential: Potential
    report: Report
