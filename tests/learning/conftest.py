"""A small run in one process, which the tests of this folder read, and settings for others."""

import sys

import pytest
from ase.build import bulk
from ase.io import write

from torchmdx.datasets.labelling.calculators import Choice
from torchmdx.datasets.labelling.labeller import Labeller
from torchmdx.datasets.labelling.ledger import Failure
from torchmdx.datasets.labelling.output import write_structures
from torchmdx.datasets.labelling.run import Paths, Summary
from torchmdx.learning import run as running
from torchmdx.learning import stages
from torchmdx.learning.config import LearnConfig
from torchmdx.training.config_file import make_as


def label_here(files, output, choice, *, crew, retry_failed):
    """As `torchmdx.datasets.labelling.label`, in this process and without a journal."""
    labeller, done, failures = Labeller(Choice(choice.name, choice.options)), [], []
    for number, origin, structure in files.frames(0):
        try:
            done.append((origin, structure, labeller.labels(structure)))
        except Exception as error:
            failures.append(Failure((0, number), origin, str(error)))
    if done:
        write_structures(output, done)
    return Summary(Paths(output), len(done) + len(failures), len(done), tuple(failures), (), complete=True)


@pytest.fixture
def labelling_here(monkeypatch):
    """Labels without worker processes."""
    monkeypatch.setattr(stages, "label", label_here)


def start_file(path):
    """A cell of four atoms of copper and gold."""
    atoms = bulk("Cu", "fcc", a=3.8, cubic=True)
    atoms.symbols[0] = "Au"
    write(path, atoms)
    return str(path)


def settings(folder, **changes):
    """A small configuration; changes: values of sections."""
    values = {
        "start": {"structures": str(folder / "start.extxyz"), "count": 4},
        "explore": {"temperatures": [600, 1500], "steps": 40},
        "uncertainty": {"members": 2},
        "select": {"count": 3, "random": 1},
        "label": {"calculator": "emt"},
        "train": {"model": {"num_channels": 4, "num_layers": 0, "num_radial": 4, "cutoff": 3.5}},
        "stop": {"rounds": 1},
        "output": {"directory": str(folder / "run")},
    }
    values["train"]["training"] = {"epochs": 1}
    for section, keys in changes.items():
        values[section] = values.get(section, {}) | keys
    return make_as(LearnConfig, values)


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A folder with a finished run of two rounds: its configuration, the folder, and the lines it has said."""
    folder = tmp_path_factory.mktemp("learning")
    start_file(folder / "start.extxyz")
    config, said = settings(folder, stop={"rounds": 2}), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "label", label_here)
        patch.setattr(sys, "stderr", open(folder / "err", "w"))  # noqa: SIM115
        assert running.learn(config, say=said.append) == 0
    return config, folder / "run", said
