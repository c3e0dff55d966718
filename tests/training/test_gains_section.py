"""The section of a report on a fine-tuning."""

from torchmdx.training.config_file import make_config
from torchmdx.training.gains_section import fine_tuning


def test_errors_before_and_after_are_in_one_table():
    config = make_config({"finetune": {"checkpoint": "base", "replay": "old.xyz", "replay_labels": "file"}})
    before = {"validation_loss": 1.0, "validation_forces": 250.0, "old_loss": 0.1, "old_forces": 20.0}
    section = fine_tuning(config, before, before | {"validation_forces": 25.0, "old_forces": 30.0}, 2)
    assert section.tables[""].rows == [
        ["forces, new frames (validation) / meV/Å", "250", "25.0"],
        ["forces, old frames / meV/Å", "20.0", "30.0"],
    ]
    assert "worse than 'base' on the old frames: forces 30.0 instead of 20.0 meV/Å" in section.texts[1]
