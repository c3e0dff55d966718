"""The smallest file of `torchmdx learn`, explained, with every other setting as a comment."""

from __future__ import annotations

from torchmdx.learning.config import LearnConfig
from torchmdx.training.config_file import make_as, write_text

SMALLEST = {
    "start": {"structures": "start.extxyz"},
    "explore": {"temperatures": [600.0, 1200.0], "steps": 300},
    "select": {"count": 8},
    "label": {"calculator": "emt"},
    "train": {"model": {"num_channels": 16, "num_layers": 1}, "training": {"epochs": 10}},
    "stop": {"rounds": 2},
    "output": {"directory": "run"},
}
HEAD = """\
# torchmdx learn learn.yaml: explores with molecular dynamics, labels the frames that it is uncertain about, trains on
# them, and repeats this. What is not a comment is a complete, small file; comments are all other settings, with their
# defaults.

"""


def example_text() -> str:
    """YAML with comments; reading it gives the settings of SMALLEST."""
    return HEAD + write_text(make_as(LearnConfig, dict(SMALLEST)), defaults_as_comments=True)
