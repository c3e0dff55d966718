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
    parser.add_argument(
        "--schema", action="store_true", help="print the JSON schema of configurations, for editors, and exit"
    )
    parser.add_argument(
        "--learning-curve",
        metavar="N,N,...",
        help="train with these numbers of training frames, and plot errors of the test set against them",
    )
    parser.add_argument("--devices", metavar="K", help="devices per node; short for --training.devices")
    parser.add_argument("--nodes", metavar="K", help="number of nodes; short for --training.nodes")
    parser.rest = "words"
    parser.set_defaults(run=run, flags=parser.flags())


def run(options: argparse.Namespace) -> int:
    from torchmdx.commands.spelling import take_file
    from torchmdx.training.config import Config
    from torchmdx.training.config_file import make_config, print_schema, read_config, write_text

    words: list[str] = options.words
    if options.schema:
        return print_schema(Config, "torchmdx train")
    file = take_file(words, Config, options.flags, "torchmdx train CONFIG.yaml", options.print_config)
    for name in ("devices", "nodes"):
        if getattr(options, name) is not None:
            words += [f"--training.{name}", getattr(options, name)]
    if file is None and not options.print_config:
        raise ValueError("train needs a configuration: torchmdx train CONFIG.yaml (--print-config prints an example)")
    config = make_config({}, words) if file is None else read_config(file, words)
    if options.print_config:
        sys.stdout.write(write_text(config))
        return 0
    changes = options.set or []
    if options.learning_curve is not None:
        from torchmdx.training.learning_curve import learning_curve, sizes_of

        if changes:
            raise ValueError(f"--set changes a single run that is resumed, got {changes[0]!r} with --learning-curve")
        return learning_curve(config, sizes_of(options.learning_curve))
    from torchmdx.training.run import train

    return train(config, options.resume, changes=changes)
