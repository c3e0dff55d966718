"""Writes the folder of a report: pictures, a page, all numbers as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import torchmdx
from torchmdx.datasets.store import Store
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.report import sections, tables
from torchmdx.report.environment import environment
from torchmdx.report.errors import Worst
from torchmdx.report.evaluation import EvaluatedSets, Sets, evaluate_sets
from torchmdx.report.interactive import write_interactive
from torchmdx.report.page import PageSection, page
from torchmdx.report.scales import Scales, scales
from torchmdx.runtime.files import write_whole

PAGE, NUMBERS, INTERACTIVE = "index.html", "errors.json", "interactive.html"
TITLE = "How well the potential predicts"


def write_report(
    directory: Path,
    potential: Potential | Ensemble,
    sets: Sets,
    *,
    history: Path | None,
    config: Mapping[str, Any] | None,
    device: torch.device | str,
    dtype: torch.dtype,
    kcal: bool = False,
    title: str = TITLE,
    more: Sequence[PageSection] = (),
    progress: Callable[[str, int, int], None] | None = None,
) -> Path:
    """Evaluates a potential or ensemble on sets of frames (store, indices); writes `directory`, returns its index.html.

    Args:
        history: Folder of a training, with epochs.csv, or None.
        config: Its settings, nested.
        kcal: kcal/mol instead of meV.
        more: Sections below the errors. progress and errors: as `evaluate_sets`; ImportError without matplotlib,
            OSError where nothing can be written.
    """
    found = evaluate_sets(potential, sets, device=device, dtype=dtype, progress=progress)
    return write_evaluation(directory, found, history=history, config=config, kcal=kcal, title=title, more=more)


def write_evaluation(
    directory: Path,
    found: EvaluatedSets,
    *,
    history: Path | None = None,
    config: Mapping[str, Any] | None = None,
    kcal: bool = False,
    title: str = TITLE,
    more: Sequence[PageSection] = (),
) -> Path:
    """`write_report` for sets that are already evaluated."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    units, around = scales(kcal), environment(found.device)
    around["precision"] = str(found.dtype).removeprefix("torch.")
    shown = [
        PageSection("Errors", tables={"": tables.summary(found.errors, units)}),
        *more,
        *sections.curves(directory, history),
        *sections.parity(directory, found.errors, units),
        *sections.distribution(directory, found.errors, units),
        *sections.spreads(directory, found.errors, units),
        *sections.uncertainties(directory, found.errors, units),
        *sections.groups(directory, found.errors, units),
        *sections.worst(found.errors, found.stores, units),
        sections.described(found.potential),
    ]
    if config:
        shown.append(PageSection("Configuration", tables={"": tables.pairs(tables.flat(config))}))
    shown.append(PageSection("Environment", tables={"": tables.pairs(around)}))
    subtitle = f"{around['date']}, torchmdx {torchmdx.__version__}. The numbers are in {NUMBERS} too."
    verdicts = found.verdicts(units)
    numbers = {"environment": around, "verdict": verdicts, "hints": found.hints(), "sets": numbers_of(found, units)}
    write_whole(directory / NUMBERS, (json.dumps(numbers, indent=1, ensure_ascii=False) + "\n").encode())
    kept = {name: errors.kept for name, errors in found.errors.items()}
    paged = write_interactive(directory / INTERACTIVE, kept, found.stores, units, title=title)
    text = page(title, subtitle, found.hints(), shown, verdicts, INTERACTIVE if paged else "")
    write_whole(directory / PAGE, text.encode())
    return directory / PAGE


def numbers_of(found: EvaluatedSets, units: Scales) -> dict[str, Any]:
    """All numbers of the report, by set, for JSON. Labels of the worst frames are in eV and eV/Å."""
    numbers = {}
    for name, errors in found.errors.items():
        store = found.stores[name]
        worst = {
            kind: [_listed(one, store) for one in getattr(errors, kind)] for kind in ("worst_energy", "worst_forces")
        }
        numbers[name] = {"digest": store.digest, **errors.summary(units), **worst}
    return numbers


def _listed(worst: Worst, store: Store) -> dict[str, Any]:
    source, frame = store.origin(worst.index)
    where = {"file": source, "frame": frame, "formula": worst.formula, "num_atoms": worst.num_atoms}
    atom = {} if worst.atom is None else {"atom": worst.atom}
    return {**where, **atom, "label": worst.label, "predicted": worst.predicted}
