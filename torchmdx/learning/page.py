"""The page of a run, learn.html: errors, uncertainty and coverage by round, what was selected and why, what it cost."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from torchmdx.datasets.labelling.geometry import UnlabelledStructure
from torchmdx.learning.run_folder import CHOSEN, RunFolder
from torchmdx.learning.selecting import MAP
from torchmdx.learning.stage import read_json
from torchmdx.learning.stop import Ending, RoundRecord
from torchmdx.learning.structures import read_structures
from torchmdx.report.view.arrange import movie_of
from torchmdx.report.view.movie import MovieFrames
from torchmdx.report.view.page import movie_data, require_plotly, write_page
from torchmdx.runtime.wording import counted, number

MOST_FRAMES, MOST_ATOMS = 400, 40_000  # whose structures are on the page
STAGES = ("start", "explore", "select", "label", "train")
Results = list[dict[str, dict[str, Any]]]


def write(run: RunFolder, path: Path, results: Results, records: Sequence[RoundRecord], ending: Ending | None) -> bool:
    """Writes the page; without plotly prints one line and returns False. ending: None while the run continues."""
    try:
        require_plotly()
    except ImportError as error:
        print(f"no page: {error}", file=sys.stderr)
        return False
    write_page(path, f"{run.folder.name}: active learning", page_data(run, results, records, ending), "learning.js")
    return True


def page_data(
    run: RunFolder, results: Results, records: Sequence[RoundRecord], ending: Ending | None
) -> dict[str, Any]:
    """The page's data as JSON."""
    labelled = [frame for number in range(len(results)) for frame in _frames(run, number, results[number])]
    shown = _fewer(labelled)
    notes = [f"{len(shown):,} of {len(labelled):,} labelled frames are shown."] * (len(shown) < len(labelled))
    structures = {} if not shown else movie_data(movie_of(_movie([one[0] for one in shown]), plain=True))
    stop = run.config.stop
    return {
        **structures,
        "summary": _state(records[-1], ending),
        "notes": notes,
        "captions": [_caption(row) for _, row in shown],
        "frames": [row for _, row in shown],
        "rounds": [_round(record, stages) for record, stages in zip(records, results, strict=True)],
        "maps": [_map(run, number, results[number]) for number in range(len(results))],
        "targets": {"uncertainty": stop.uncertainty, "error": stop.error, "threshold": run.config.threshold},
        "unit": run.config.uncertainty.unit,
        "stages": STAGES,
    }


def _state(last: RoundRecord, ending: Ending | None) -> str:
    done = f"{counted(last.number, 'round')}, {counted(last.labels, 'label')}, {number(last.hours)} h"
    if ending is None:
        return f"{done}; the run continues"
    return f"{done}; {'converged' if ending.converged else 'not converged'}: {ending.reason}"


def _frames(
    run: RunFolder, round_number: int, stages: dict[str, dict[str, Any]]
) -> list[tuple[UnlabelledStructure, dict[str, Any]]]:
    """The frames that were chosen in a round, with why, and the errors on them."""
    if "label" not in stages:
        return []
    structures = read_structures(run.place(round_number, "select" if round_number else "start") / CHOSEN)
    errors = stages["label"]["errors"] or {"frames": []}
    of = {one["place"]: one for one in errors["frames"]}
    chosen = stages["select"]["chosen"] if round_number else [{"why": "start"} for _ in structures]
    return [
        (
            structure,
            {
                "round": round_number,
                "place": place,
                "force_error": of.get(place, {}).get("force_error"),
                "energy_error": of.get(place, {}).get("energy_error"),
                **one,
            },
        )
        for place, (structure, one) in enumerate(zip(structures, chosen, strict=True))
    ]


def _caption(row: dict[str, Any]) -> str:
    if row["why"] == "start":
        return f"before round 1, frame {row['place']}"
    conditions = f"{row['temperature']:g} K" + ("" if row["pressure"] is None else f", {row['pressure']:g} bar")
    return f"round {row['round']}: {row['structure']}, {conditions}, step {row['step']:,}"


def _round(record: RoundRecord, stages: dict[str, dict[str, Any]]) -> dict[str, Any]:
    explored, errors = stages.get("explore", {}), (stages.get("label") or {}).get("errors") or {}

    def error(kind: str, name: str) -> float | None:
        return None if not errors.get(kind) else errors[kind][name]

    return {
        "number": record.number,
        "uncertainty": record.uncertainty,
        "median": explored.get("median"),
        "quantiles": explored.get("quantiles"),
        "endings": explored.get("endings"),
        "replicas": explored.get("replicas"),
        "explored": explored.get("frames"),
        "mean_steps": explored.get("mean_steps"),
        "force_rmse": error("all", "force_rmse"),
        "energy_rmse": error("all", "energy_rmse"),
        "random_force_rmse": error("random", "force_rmse"),
        "labels": record.labels,
        "new_labels": stages.get("label", {}).get("labels", 0),
        "failed_labels": len(stages.get("label", {}).get("failures", [])),
        "duplicates": stages.get("select", {}).get("duplicates"),
        "broken": stages.get("select", {}).get("broken"),
        "seconds": {name: stages[name]["seconds"] for name in STAGES if name in stages},
    }


def _map(run: RunFolder, round_number: int, stages: dict[str, dict[str, Any]]) -> dict[str, Any] | None:
    return read_json(run.place(round_number, "select") / MAP) if "select" in stages else None


def _fewer(
    frames: list[tuple[UnlabelledStructure, dict[str, Any]]],
) -> list[tuple[UnlabelledStructure, dict[str, Any]]]:
    """As many frames as a page can hold, spread over all rounds."""
    if not frames:
        return []
    atoms = sum(len(structure.numbers) for structure, _ in frames)
    most = min(len(frames), MOST_FRAMES, max(1, int(MOST_ATOMS / atoms * len(frames))))
    places = np.unique(np.linspace(0, len(frames) - 1, most).round().astype(int))
    return [frames[k] for k in places.tolist()]


def _movie(structures: list[UnlabelledStructure]) -> MovieFrames:
    return MovieFrames(
        title="",
        numbers=[one.numbers for one in structures],
        positions=[one.positions for one in structures],
        cells=[one.cell if one.pbc.any() else None for one in structures],
        pbc=[one.pbc for one in structures],
        indices=np.arange(len(structures)),
        num_frames=len(structures),
        x=np.arange(len(structures), dtype=np.float64),
        axis="frame",
        captions=["" for _ in structures],
    )
