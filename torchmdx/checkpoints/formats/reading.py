"""What reading a checkpoint returns: the potential, and a report."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchmdx.models.potential import Potential


class UnsupportedCheckpoint(ValueError):
    """A valid checkpoint of another program that contains something torchmdx cannot represent."""


@dataclass
class Report:
    """read: taken over unchanged. remapped: converted, and how. ignored: left out, and why."""

    source: str
    sha256: str
    read: list[str] = field(default_factory=list)
    remapped: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)

    def conversion(self) -> list[str]:
        """A line for each thing that was read, and each that was converted."""
        return [*(f"read: {entry}" for entry in self.read), *(f"converted: {entry}" for entry in self.remapped)]

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
