"""What a fine-tuning says that it gained and lost."""

import pytest

from torchmdx.training.config_file import make_config
from torchmdx.training.gains import fine_tuning, lines, remarks, rows

NEW = {"validation_loss": 1.0, "validation_energy": 40.0, "validation_forces": 250.0}
BETTER = {"validation_loss": 0.1, "validation_energy": 4.0, "validation_forces": 25.0}
OLD = {"old_loss": 0.1, "old_energy": 2.0, "old_forces": 20.0}


def config(**finetune):
    return make_config({"finetune": {"checkpoint": "base", "replay": "old.xyz"} | finetune})


def test_both_sets_are_shown_beside_each_other():
    found = rows(config(replay_labels="file"), NEW | OLD, BETTER | OLD | {"old_forces": 19.0})
    assert found == [
        ("new frames (validation)", "energy", "meV/atom", 40.0, 4.0),
        ("new frames (validation)", "forces", "meV/Å", 250.0, 25.0),
        ("old frames", "energy", "meV/atom", 2.0, 2.0),
        ("old frames", "forces", "meV/Å", 20.0, 19.0),
    ]
    text = lines(config(replay_labels="file"), NEW | OLD, BETTER | OLD | {"old_forces": 19.0}, 3)
    assert text[0].split() == ["held-out", "error", "of", "checkpoint", "fine-tuned"]
    assert text[2].split() == ["new", "frames", "(validation)", "forces", "250", "25.0", "meV/Å"]
    assert text[5:] == [
        "gained 225 of 250 meV/Å in forces on the new frames (validation); "
        "gained 1.00 of 20.0 meV/Å in forces on the old frames"
    ]


@pytest.mark.parametrize(
    ("change", "warning"),
    [
        (
            {"validation_energy": 43.0},
            "worse than 'base' on the new frames (validation): energy 43.0 instead of 40.0 meV/atom",
        ),
        ({"old_forces": 31.0}, "worse than 'base' on the old frames: forces 31.0 instead of 20.0 meV/Å"),
        ({"old_forces": 20.5}, None),  # less than 5 % is noise
    ],
)
def test_a_potential_that_got_worse_is_called_so(change, warning):
    said = remarks(config(replay_labels="file"), NEW | OLD, BETTER | OLD | change, 3)[1:]
    assert [warning in text and text.startswith("warning: ") for text in said] == [True] * (warning is not None)


def test_drift_is_compared_with_the_errors_on_new_frames():
    before = NEW | {"old_loss": 0.0}  # the checkpoint's errors on its own labels are 0
    small = BETTER | {"old_loss": 0.0, "old_energy": 1.0, "old_forces": 9.0}
    assert remarks(config(), before, small, 3) == [
        "gained 225 of 250 meV/Å in forces on the new frames (validation); moved by 9.00 meV/Å on the old frames"
    ]
    _, said = remarks(config(), before, small | {"old_forces": 30.0}, 3)
    assert "has moved further from 'base' on the old frames" in said
    assert "forces 30.0 against 25.0 meV/Å" in said


def test_a_checkpoint_that_stayed_best_and_errors_that_were_not_measured_are_mentioned():
    said = remarks(config(), NEW | OLD, NEW | OLD, 0)
    assert said[-1].startswith("warning: no epoch had a lower validation loss than 'base' itself")
    said = remarks(config(replay=None), NEW, BETTER, 3)
    assert said[0] == "gained 225 of 250 meV/Å in forces on the new frames (validation)"
    assert said[1].startswith("note: errors on structures unlike the new frames may have grown, and were not measured")


def test_the_test_set_is_shown_where_there_is_one():
    tested = {"test_loss": 1.0, "test_energy": 50.0, "test_forces": 300.0}
    after = BETTER | {"test_loss": 0.2, "test_energy": 9.0, "test_forces": 310.0}
    assert rows(config(), NEW | tested, after) == [
        ("new frames (test)", "energy", "meV/atom", 50.0, 9.0),
        ("new frames (test)", "forces", "meV/Å", 300.0, 310.0),
    ]
    said = remarks(config(), NEW | {"test_forces": 200.0} | tested, after | {"test_forces": 340.0}, 3)
    assert said[0] == "lost 40.0 of 300 meV/Å in forces on the new frames (test)"
    assert "worse than 'base' on the new frames (test): forces 340 instead of 300 meV/Å" in said[1]


def test_errors_before_and_after_are_in_one_table():
    config = make_config({"finetune": {"checkpoint": "base", "replay": "old.xyz", "replay_labels": "file"}})
    before = {"validation_loss": 1.0, "validation_forces": 250.0, "old_loss": 0.1, "old_forces": 20.0}
    section = fine_tuning(config, before, before | {"validation_forces": 25.0, "old_forces": 30.0}, 2)
    assert section.tables[""].rows == [
        ["forces, new frames (validation) / meV/Å", "250", "25.0"],
        ["forces, old frames / meV/Å", "20.0", "30.0"],
    ]
    assert "worse than 'base' on the old frames: forces 30.0 instead of 20.0 meV/Å" in section.texts[1]
