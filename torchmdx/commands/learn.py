"""`torchmdx learn`: from a few structures to a potential, by active learning."""

from __future__ import annotations

import argparse
import sys
from typing import Any

DESCRIPTION = """\
Explores with molecular dynamics, selects uncertain frames that differ from each other, labels and trains on them, and
repeats this until a target is reached or a budget is spent.

    torchmdx learn learn.yaml
    torchmdx learn learn.yaml --dry-run
    torchmdx learn learn.yaml --stop.rounds 5

Options of the form --section.key value override the file. The smallest file:

    start: {structures: start.extxyz}
    label: {calculator: emt}
"""
EPILOG = """\
Everything is in output.directory: a folder for each round and stage, the page learn.html, and potential.safetensors.
After any interruption the same command continues. The last line says whether the targets were reached.
"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "learn",
        help="make a potential from a few structures: explore, select, label, train, in rounds",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="torchmdx learn [--dry-run] [--example] [--schema] [LEARN.yaml] [--section.key value ...]",
        allow_abbrev=False,
    )
    parser.add_argument("--example", action="store_true", help="print a small file with every setting, and exit")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and what it costs, and exit")
    parser.add_argument(
        "--schema", action="store_true", help="print the JSON schema of configurations, for editors, and exit"
    )
    parser.rest = "words"
    parser.set_defaults(run=run, flags=parser.flags())


def run(options: argparse.Namespace) -> int:
    from torchmdx.commands.spelling import take_file
    from torchmdx.learning.config import LearnConfig
    from torchmdx.training.config_file import print_schema, read_as

    if options.schema:
        return print_schema(LearnConfig, "torchmdx learn")
    if options.example:
        from torchmdx.learning.example import example_text

        sys.stdout.write(example_text())
        return 0
    words: list[str] = options.words
    file = take_file(words, LearnConfig, options.flags, "torchmdx learn LEARN.yaml", optional=False)
    if file is None:
        raise ValueError("learn needs a configuration: torchmdx learn LEARN.yaml (--example prints one)")
    config = read_as(LearnConfig, file, words)
    if options.dry_run:
        from torchmdx.learning.plan import print_plan

        return print_plan(config)
    from torchmdx.learning.run import learn

    return learn(config)
