"""The section of a report on what a fine-tuning gained and lost."""

from __future__ import annotations

from torchmdx.report.page import PageSection
from torchmdx.report.tables import Table
from torchmdx.runtime.wording import number
from torchmdx.training.config import Config
from torchmdx.training.gains import Values, remarks, rows


def fine_tuning(config: Config, before: Values, after: Values, best_epoch: int) -> PageSection:
    """Errors of the checkpoint and of the fine-tuned potential on held-out frames, side by side."""
    cells = [
        [f"{quantity}, {which} / {unit}", number(a), number(b)]
        for which, quantity, unit, a, b in rows(config, before, after)
    ]
    table = Table(["mean absolute error", "checkpoint", "fine-tuned"], cells, words=(0,))
    return PageSection("Fine-tuning", remarks(config, before, after, best_epoch), tables={"": table})
