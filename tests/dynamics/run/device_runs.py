"""Runs of `torchmdx md --engine torchmdx` on the CPU, and comparison of their files."""

from md_runs import rows

from torchmdx.commands import cli


def md(file, model, output, *options) -> int:
    fixed = ["--engine", "torchmdx", "--device", "cpu", "--save-every", "4", "--log-every", "2", "--timestep", "0.25"]
    seed = [] if "--seed" in options else ["--seed", "5"]
    return cli.main(["md", file, "--model", model, "-o", output, *fixed, *seed, *map(str, options)])


def assert_same_run(one, other):
    for ending in (".dcd",):
        with open(one + ending, "rb") as first, open(other + ending, "rb") as second:
            assert first.read() == second.read()
    assert rows(f"{one}.log") == rows(f"{other}.log")
