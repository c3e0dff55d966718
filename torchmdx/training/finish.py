"""The end of a run: what was reached, and the report."""

from __future__ import annotations

from pathlib import Path

import torch

from torchmdx.checkpoints.locate import with_head
from torchmdx.checkpoints.save_load import load_one, with_uncertainty_in
from torchmdx.models.uncertainty import why_not
from torchmdx.report.rigidity import NoCalibration, add_uncertainty
from torchmdx.runtime.files import write_whole
from torchmdx.runtime.wording import counted, number
from torchmdx.training.config import Config
from torchmdx.training.gains import UNITS, Values, lines
from torchmdx.training.heads import OLD, REPLAY
from torchmdx.training.loop import BEST, LAST, Trainer
from torchmdx.training.validation import NEW, TEST, errors_of

SHOWN = {OLD: "old frames"}  # names of parts in the report


def finish(config: Config, trainer: Trainer, directory: Path, device: torch.device) -> None:
    """Prints what was reached, and writes the report."""
    best, epoch = trainer.best_errors, trainer.best_epoch
    heads = trainer.heads.names if trainer.heads is not None else ("",)
    files = {head: with_head(directory / BEST, head or None) for head in heads}
    if f"{TEST}_loss" in trainer.before:
        tested = {head: load_one(file, device=device, dtype=trainer.potential.dtype) for head, file in files.items()}
        of_heads = {"": trainer.parts[TEST]} if trainer.heads is None else trainer.heads.parts(trainer.parts[TEST])
        there = {head: one for head, one in tested.items() if len(of_heads[head])}
        best = best | errors_of(there, config, trainer.store, of_heads, TEST)
    tuned = bool(trainer.before)
    from_epoch = f"from epoch {epoch}" if epoch else "the checkpoint itself"
    print(f"{directory / BEST}  best, {from_epoch}" if epoch or tuned else f"{directory / LAST}")
    if tuned:
        print("\n".join(lines(config, trainer.before, best, epoch)))
    else:
        for head in ("", *(head for head in heads if head)):
            if errors := _listed(trainer.best_errors, f"{NEW}_{head}_" if head else f"{NEW}_"):
                of = f" of the head {head}" if head else ""
                print(f"validation errors{of}, MAE (RMSE): {errors}")
    if config.output.uncertainty:
        store_uncertainty(trainer, directory, device)
    if config.output.report:
        for head, file in files.items():
            print(_report(config, trainer, directory, device, best, head, str(file)))


def _listed(values: Values, prefix: str) -> str:
    """Mean absolute and root mean square errors of all terms, as text."""
    shown = [(term, prefix + term, unit) for term, unit in UNITS.items() if prefix + term in values]
    return ", ".join(
        f"{term} {number(values[key])} ({number(values.get(f'{key}_rmse', float('nan')))}) {unit}"
        for term, key, unit in shown
    )


def _report(
    config: Config, trainer: Trainer, directory: Path, device: torch.device, best: Values, head: str, file: str
) -> Path:
    """Writes the report, of several heads that of one, in a folder of its name."""
    from torchmdx.report.sources import source_names
    from torchmdx.report.write import write_report
    from torchmdx.training.gains import fine_tuning

    potential = load_one(file, device=device)
    parts = {SHOWN.get(name, name): part for name, part in trainer.parts.items() if name != REPLAY and len(part)}
    if trainer.heads is not None:
        parts = {name: trainer.heads.parts(part)[head] for name, part in parts.items()}
    sets = {name: (trainer.store, part) for name, part in parts.items() if len(part)}
    return write_report(
        directory / "report" / head,
        potential,
        sets,
        history=directory if "csv" in config.output.loggers else None,
        config=config.plain(),
        device=device,
        dtype=trainer.potential.dtype,
        kcal=config.output.kcal,
        more=[fine_tuning(config, trainer.before, best, trainer.best_epoch)] if trainer.before else [],
        title=f"{directory.name}/{Path(file).name} on {source_names(trainer.store)}",
    )


def store_uncertainty(trainer: Trainer, directory: Path, device: torch.device) -> None:
    """Gathers the covariance over the training frames, and calibrates it by the validation frames; each head its own.

    Prints what was stored, or why nothing was.
    """
    file, heads = directory / BEST, trainer.heads
    if not file.is_file():
        return
    for head in ("",) if heads is None else heads.names:
        name = with_head(file, head or None)
        parts = {part: trainer.parts[part] for part in ("train", "validation")}
        if heads is not None:
            parts = {part: heads.parts(indices)[head] for part, indices in parts.items()}
        potential = load_one(name, device=device, dtype=trainer.potential.dtype)
        of = f" of the head {head}" if head else ""
        sets = ((trainer.store, parts["train"]), (trainer.store, parts["validation"]))
        try:
            if (reason := why_not(potential.head)) is not None:
                raise NoCalibration(reason)
            found = add_uncertainty(potential, *sets, device=device, dtype=trainer.potential.dtype).uncertainty
        except NoCalibration as error:
            print(f"{file}  no uncertainty{of}: {error}")
            continue
        assert found is not None
        content = with_uncertainty_in(file, found, head or None)
        assert content is not None
        write_whole(file, content)
        frames = f"{counted(found.num_frames, 'frame')}, by the errors of {found.num_calibration:,}"
        print(f"{file}  uncertainty{of} from {frames}: factor {number(found.factor)} eV")
