"""The example: it reads as the smallest file, and has every setting with its default."""

import yaml

from torchmdx.learning.config import LearnConfig
from torchmdx.learning.example import SMALLEST, example_text
from torchmdx.training.config_file import known_keys, make_as

# The file of the documentation, as text.
SMALL = """
start: {structures: start.extxyz}
explore: {temperatures: [600, 1200], steps: 300}
select: {count: 8}
label: {calculator: emt}
train: {model: {num_channels: 16, num_layers: 1}, training: {epochs: 10}}
stop: {rounds: 2}
output: {directory: run}
"""


def test_the_example_is_the_smallest_file():
    assert yaml.safe_load(example_text()) == SMALLEST == yaml.safe_load(SMALL)
    assert make_as(LearnConfig, yaml.safe_load(example_text())) == make_as(LearnConfig, yaml.safe_load(SMALL))


def test_without_its_marks_of_comments_it_has_every_setting_with_its_default():
    lines = example_text().splitlines()
    start = lines.index("start:") - 1
    bare = [line[2:] if line.startswith("# ") else line for line in lines[start:]]
    settings = [line for line in bare if ":" in line and (line.startswith(" ") or line.split(":")[0].isidentifier())]
    values = yaml.safe_load("\n".join(settings))
    assert LearnConfig.model_validate(values).plain() == make_as(LearnConfig, dict(SMALLEST)).plain()
    for key in known_keys(LearnConfig):
        at = values
        for name in key.split("."):
            assert name in at, key
            at = at[name]
