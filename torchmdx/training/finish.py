"""The end of a run: what was reached, and the report."""

from __future__ import annotations

from pathlib import Path

import torch

from torchmdx.checkpoints.save_load import load_one
from torchmdx.runtime.wording import number
from torchmdx.training.config import Config
from torchmdx.training.gains import UNITS, lines
from torchmdx.training.loop import BEST, LAST, Trainer
from torchmdx.training.replay import OLD, REPLAY
from torchmdx.training.validation import TEST, errors_of

SHOWN = {OLD: "old frames"}  # names of parts in the report


def finish(config: Config, trainer: Trainer, directory: Path, device: torch.device) -> None:
    """Prints what was reached, and writes the report."""
    best, epoch = trainer.best_errors, trainer.best_epoch
    if f"{TEST}_loss" in trainer.before:
        tested = load_one(directory / BEST, device=device, dtype=trainer.potential.dtype)
        best = best | errors_of(tested, config, trainer.store, trainer.parts[TEST], TEST)
    tuned = bool(trainer.before)
    from_epoch = f"from epoch {epoch}" if epoch else "the checkpoint itself"
    print(f"{directory / BEST}  best, {from_epoch}" if epoch or tuned else f"{directory / LAST}")
    shown = {term: value for term in UNITS if (value := trainer.remembered.get(f"validation_{term}")) is not None}
    if tuned:
        print("\n".join(lines(config, trainer.before, best, epoch)))
    elif shown:
        errors = ", ".join(f"{term} {number(value)} {UNITS[term]}" for term, value in shown.items())
        print(f"validation errors of the last epoch: {errors}")
    if config.output.report:
        from torchmdx.report.sources import source_names
        from torchmdx.report.write import write_report
        from torchmdx.training.gains_section import fine_tuning

        potential = load_one(directory / BEST, device=device)
        parts = {SHOWN.get(name, name): part for name, part in trainer.parts.items() if name != REPLAY and len(part)}
        sets = {name: (trainer.store, part) for name, part in parts.items()}
        page = write_report(
            directory / "report",
            potential,
            sets,
            history=directory if "csv" in config.output.loggers else None,
            config=config.plain(),
            device=device,
            dtype=trainer.potential.dtype,
            kcal=config.output.kcal,
            more=[fine_tuning(config, trainer.before, best, epoch)] if tuned else [],
            title=f"{directory.name}/{BEST} on {source_names(trainer.store)}",
        )
        print(page)
