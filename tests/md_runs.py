"""Runs of `torchmdx md` on the Reference platform, and comparison of their files."""

import argparse
from pathlib import Path

import ase.io
import numpy as np

from torchmdx.commands import cli
from torchmdx.commands.md import add_parser

TINY = dict(num_layers=0, num_channels=4, num_radial=4)
SAME_SEED = ["--seed", "5"]
DYNAMICS = ["--save-every", 4, "--log-every", 3, "--timestep", 1, *SAME_SEED]


def md(file, model, output, *options) -> int:
    options = [str(option) for option in options]
    for name, value in (("--platform", "Reference"), ("--precision", "float64"), ("--transport", "python")):
        if name not in options:
            options += [name, value]
    return cli.main(["md", file, "--model", model, "-o", str(output), "--device", "cpu", *options])


def parsed(*given) -> argparse.Namespace:
    """Options of `torchmdx md`, of 4 steps."""
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    return parser.parse_args(["md", "a.xyz", "-o", "run", "--steps", "4", *map(str, given)])


def read_for_openmm(file, **given):
    """The structure of a file for OpenMM, with options of `torchmdx md` by their names in a Namespace."""
    from torchmdx.commands.md_openmm.structure import read

    return read(argparse.Namespace(**vars(parsed()) | {"file": file} | given))


def rows(path) -> list[str]:
    """Lines of a log without the speed, which is not reproducible."""
    return [line.rsplit(",", 1)[0] for line in Path(path).read_text().splitlines()]


def assert_same_run(prefix, other):
    """Asserts identical frames and rows."""
    assert Path(f"{prefix}.dcd").read_bytes() == Path(f"{other}.dcd").read_bytes()
    assert rows(f"{prefix}.log") == rows(f"{other}.log")
    first, second = ase.io.read(f"{prefix}.final.xyz"), ase.io.read(f"{other}.final.xyz")
    np.testing.assert_array_equal(first.positions, second.positions)


def assert_refused(capsys, status, *words):
    error = capsys.readouterr().err
    assert status == 2, error
    assert "Traceback" not in error
    assert "torchmdx: error: " in error
    for word in words:
        assert word in error, error
