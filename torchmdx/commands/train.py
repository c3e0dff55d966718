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
    parser.add_argument(
        "rest",
        nargs=argparse.REMAINDER,
        metavar="CONFIG.yaml",
        help="configuration file, followed by overrides --section.key value",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    words = [word for word in options.rest if word not in ("--resume", "--print-config", "--schema")]
    words, changes = _taken(words, "--set", "KEY=VALUE")
    changes = [*(options.set or []), *changes]
    words, curves = _taken(words, "--learning-curve", "N,N,...")
    curve = options.learning_curve or next(iter(curves), None)
    if options.schema or "--schema" in options.rest:
        return _print_schema()
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
    if curve is not None:
        from torchmdx.training.learning_curve import learning_curve, sizes_of

        if changes:
            raise ValueError(f"--set changes a single run that is resumed, got {changes[0]!r} with --learning-curve")
        return learning_curve(config, sizes_of(curve))
    from torchmdx.training.run import train

    return train(config, resume, changes=changes)


def _print_schema() -> int:
    import json

    from torchmdx.training.config_file import json_schema

    sys.stdout.write(json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n")
    return 0


def _taken(words: list[str], option: str, what: str) -> tuple[list[str], list[str]]:
    """The words without an option, and the values that it was given. Raises ValueError for the option alone."""
    kept: list[str] = []
    values: list[str] = []
    waiting = iter(words)
    for word in waiting:
        if word == option:
            value = next(waiting, None)
            if value is None:
                raise ValueError(f"{option} needs {what}, got nothing")
            values.append(value)
        elif word.startswith(f"{option}="):
            values.append(word.removeprefix(f"{option}="))
        else:
            kept.append(word)
    return kept, values


def _is(word: str, name: str) -> bool:
    return word == f"--{name}" or word.startswith(f"--{name}=")
