"""`torchmdx train`: trains a potential on labelled structures."""

from __future__ import annotations

import argparse
import sys
from typing import Any

DESCRIPTION = """\
Trains a potential as configured in a YAML file.

    torchmdx train config.yaml --training.epochs 100 --loss.energy.weight 5

Options of the form --section.key value override the file. Settings that are not given keep their defaults, so a
short file is enough:

    data:
      path: water.store        # written by `torchmdx data convert`
    training:
      epochs: 200
    output:
      directory: water
"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "train",
        help="train a potential on labelled structures",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="torchmdx train [--resume [--set KEY=VALUE]] [--print-config] [CONFIG.yaml] [--section.key value ...]",
        allow_abbrev=False,
    )
    parser.add_argument("--resume", action="store_true", help="continue the run in output.directory")
    parser.add_argument(
        "--set",
        action="append",
        metavar="KEY=VALUE",
        help="with --resume: change a setting of optimizer, schedule or loss, which is recorded; may be repeated",
    )
    parser.add_argument(
        "--print-config", action="store_true", help="print the complete configuration, with comments, and exit"
    )
    parser.add_argument("--devices", metavar="K", help="devices per node; short for --training.devices")
    parser.add_argument("--nodes", metavar="K", help="number of nodes; short for --training.nodes")
    parser.add_argument(
        "rest",
        nargs=argparse.REMAINDER,
        metavar="CONFIG.yaml",
        help="configuration file, followed by overrides --section.key value",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    words, changes = _without_changes([word for word in options.rest if word not in ("--resume", "--print-config")])
    changes = [*(options.set or []), *changes]
    resume = options.resume or "--resume" in options.rest
    print_config = options.print_config or "--print-config" in options.rest
    file = words.pop(0) if words and not words[0].startswith("--") else None
    for name in ("devices", "nodes"):
        words = [f"--training.{name}" + word[len(name) + 2 :] if _is(word, name) else word for word in words]
        if getattr(options, name) is not None:
            words += [f"--training.{name}", getattr(options, name)]
    from torchmdx.training.config_file import make_config, read_config, write_text

    if file is None and not print_config:
        raise ValueError("train needs a configuration: torchmdx train CONFIG.yaml (--print-config prints an example)")
    config = make_config({}, words) if file is None else read_config(file, words)
    if print_config:
        sys.stdout.write(write_text(config))
        return 0
    from torchmdx.training.run import train

    return train(config, resume, changes=changes)


def _without_changes(words: list[str]) -> tuple[list[str], list[str]]:
    """The words without --set KEY=VALUE, and what was given to that. Raises ValueError for --set alone."""
    kept: list[str] = []
    changes: list[str] = []
    waiting = iter(words)
    for word in waiting:
        if word == "--set":
            change = next(waiting, None)
            if change is None:
                raise ValueError("--set needs KEY=VALUE, got nothing")
            changes.append(change)
        elif word.startswith("--set="):
            changes.append(word.removeprefix("--set="))
        else:
            kept.append(word)
    return kept, changes


def _is(word: str, name: str) -> bool:
    return word == f"--{name}" or word.startswith(f"--{name}=")
