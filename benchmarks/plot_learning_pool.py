"""Draws docs/images/learning_pool.svg from results/learning_pool.json: errors over labels from fixed pools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from plot_learning import COLORS, LABELS, curves
from plot_speed import FAINT, framed, text

RECORD = Path(__file__).with_name("results") / "learning_pool.json"
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "learning_pool.svg"

WIDTH, HEIGHT = 960, 412
CASES = {
    "alloy, rare": "last epoch, 350 steps",
    "alloy, rare, best epoch": "best epoch by ten frames, 700 steps",
}
GAP, LEFT, RIGHT = 90, 70, 930
TITLE = "Alloy: errors of forces by the number of labels, which are selected from a pool"


def draw(record: dict[str, Any]) -> str:
    """The picture of a record, rows and environment, as SVG."""
    rows = record["rows"]
    seeds = len({row["seed"] for row in rows if row["kind"] == "curve"})
    subtitle = f"root mean square, meV/Å; means, smallest and largest of {seeds} seeds; test frames of all kinds"
    body = [
        text(40, 34, TITLE, anchor="start", more=' font-size="17"'),
        text(40, 55, subtitle, color=FAINT, anchor="start"),
    ]
    cases = [case for case in CASES if any((row["kind"], row["case"]) == ("mean curve", case) for row in rows)]
    width = (RIGHT - LEFT - GAP * (len(cases) - 1)) // len(cases)
    for place, case in enumerate(cases):
        left = LEFT + place * (width + GAP)
        body += curves(rows, case, (left, left + width), CASES[case])
    for number, key in enumerate(key for key in COLORS if any(row["strategy"] == key for row in rows)):
        label = text(70 + 230 * number, HEIGHT - 18, LABELS[key], color=COLORS[key], anchor="start")
        body.append(label)
    said = "; ".join(
        f"{CASES[row['case']]}, {LABELS[row['strategy']]}: {100 * row['share']:.0f} % of the labels of random ones"
        for row in rows
        if row["kind"] == "gain" and row["set"] == "all" and row["share"] and row["strategy"] in LABELS
    )
    return framed(WIDTH, HEIGHT, title=TITLE, description=(said or "Errors over labels") + ".", body=body)


def main() -> None:
    PICTURE.write_text(draw(json.loads(RECORD.read_text())), encoding="utf-8")
    print(PICTURE)


if __name__ == "__main__":
    main()
