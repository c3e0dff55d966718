"""Writes what README.md shows of benchmarks/results/, and the plots of docs/images that show records.

tools/write_readme.py            writes all of them
tools/write_readme.py --check    writes nothing; exits with 1 if one is out of date

The table stands between two comments of README.md, the ratio to torchmd-net in a sentence above. Sphinx fills in the
tables of docs/ itself (docs/results.py).
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT / "docs"), str(ROOT / "benchmarks")]

import plot_learning  # noqa: E402
import plot_multiple_steps  # noqa: E402
import plot_multiple_steps_sampled  # noqa: E402
import plot_released  # noqa: E402
import plot_speed  # noqa: E402
import recorded  # noqa: E402

README, IMAGES = ROOT / "README.md", ROOT / "docs" / "images"
# Of each plot: the record, and how it is drawn.
PLOTS = {
    "released.svg": ("released", plot_released.draw),
    "speed.svg": ("step", plot_speed.draw),
    "multiple_steps.svg": ("multiple_steps_modes", plot_multiple_steps.draw),
    "multiple_steps_sampled.svg": ("multiple_steps_physics", plot_multiple_steps_sampled.draw),
    "learning.svg": ("learning", plot_learning.draw),
    "learning_pool.svg": ("learning_pool", plot_learning.draw_pools),
}
PLACE = re.compile(r"(?<=<!-- written by tools/write_readme.py -->\n).*?(?=<!-- end -->)", re.DOTALL)
TABLE = """
rows: [potential, system, atoms]
where: {system: [alanine_dipeptide, dhfr, Si 8]}
columns:
  torchmdx, ms: {by: torchmdx, value: ms}
  ns/day at 1 fs: {by: torchmdx, value: ms, inverse: 86.4}
  force error: {by: torchmdx, value: force_error}
  "upstream, ms": {by: [torchmd-net, matgl], value: ms, optional: true}
"""

# How many times as fast as upstream.
RATIO = re.compile(r"(The AceFF potentials run\s+)\S+ to \S+( times as fast as in torchmd-net)")
RATIOS = "released {by: torchmdx, potential: [aceff-1.1, aceff-2.0], value: speedup, range: true, digits: 2}"
# Of outer steps of 2 x 2 fs: two inner steps as long as the single steps of the second number.
OUTER = "{system: water8000, fast: organic-1-fast, value: inner_2_ms, over: {value: single_ms}, digits: 2, times: %d}"
SENTENCE = """\
On one {}, [multiple time steps](docs/dynamics.md#multiple-time-steps) of 2 x 2 fs with hydrogens of 3 amu run
24,000 atoms {} times as fast as single steps of 1 fs, and {} times as fast as single steps of 2 fs. They need a
[fast model](docs/distill.md) of the potential.
"""


def outdated() -> dict[Path, str]:
    """The new content of each file that is out of date. Raises ValueError if README.md has no place for the table."""
    text = README.read_text(encoding="utf-8")
    for place, content in ((PLACE, "the table"), (RATIO, "the ratio to torchmd-net")):
        if len(place.findall(text)) != 1:
            raise ValueError(f"README.md must have one place for {content}, got {len(place.findall(text))}")
    table = re.sub(r" *\| *", "|", recorded.table("released", TABLE)).rstrip()
    gains = [recorded.number("multiple_steps {environment: device}")]
    gains += [recorded.number(f"multiple_steps {OUTER % times}") for times in (2, 1)]
    shown = f"\n{table}\n\n{SENTENCE.format(*gains)}\n"
    ratio = recorded.number(RATIOS)
    text = RATIO.sub(lambda found: f"{found[1]}{ratio}{found[2]}", text)
    new = {README: PLACE.sub(lambda found: shown, text)}
    new |= {IMAGES / name: draw(recorded.record(of)) for name, (of, draw) in PLOTS.items()}
    return {path: text for path, text in new.items() if path.read_text(encoding="utf-8") != text}


def main() -> int:
    """Writes or checks; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file is out of date")
    check = parser.parse_args().check
    files = outdated()
    for path, text in files.items():
        print(f"{path.relative_to(ROOT)} is out of date" if check else f"wrote {path.relative_to(ROOT)}")
        if not check:
            path.write_text(text, encoding="utf-8")
    return 1 if check and files else 0


if __name__ == "__main__":
    sys.exit(main())
