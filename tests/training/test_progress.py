"""The line of a training, on a terminal and in a file, and messages beside it."""

import logging
import re
import warnings

import pytest
from screens import Screen

from torchmdx.training.progress import TrainingProgress, short, shown_value


def train(screen, num_epochs=4, num_steps=100, first_epoch=1, validation=5.0):
    """Steps of 0.25 s, after a first one of 20 s, and a validation after every epoch."""
    now = [0.0]
    progress = TrainingProgress(screen, num_epochs, first_epoch, clock=lambda: now[0])
    for epoch in range(first_epoch, num_epochs + 1):
        for step in range(1, num_steps + 1):
            now[0] += 20.0 if (epoch, step) == (first_epoch, 1) else 0.25
            progress.update(epoch, step, num_steps, {"loss": 0.123456}, atoms_a_step=672)
        now[0] += validation
        progress.epoch_done(epoch, num_steps, {"validation meV/Å": 31.25 / epoch})
    progress.finish()


@pytest.fixture(autouse=True)
def _wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


def test_on_a_terminal_it_is_one_line():
    screen = Screen(True)
    train(screen)
    assert screen.lines() == [
        "[####################]  100%  epoch 4/4  validation meV/Å 7.812  250 ms/step",
        "",
    ]
    drawn = [line.rstrip() for line in screen.getvalue().split("\r")]
    # Of the 399 steps after the first, 149 are done, in 37.25 s and 5 s of validation: 250 more take 70.9 s.
    half = "epoch 2/4  step 50/100  loss 0.1235  validation meV/Å 31.25  250 ms/step  2.69k atoms/s  1:11 left"
    assert f"[#######.............]   38%  {half}" in drawn
    assert "left" not in drawn[1]


def test_it_fits_a_narrow_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    screen = Screen(True)
    train(screen)
    assert max(len(line) for line in screen.getvalue().split("\r")) <= 40
    assert len(screen.lines()) == 2


def test_in_a_file_it_is_a_line_now_and_then():
    screen = Screen(False)
    train(screen, num_steps=1000)
    lines = screen.getvalue().splitlines()
    assert "\r" not in screen.getvalue()
    # 1040 s, a line in 30 s at most, and the last one in any case.
    assert 30 <= len(lines) <= 36
    assert re.match(r" {2}0% {2}epoch 1/4 {2}step 1/1,000 {2}loss 0.1235$", lines[0])
    assert lines[-1] == "100%  epoch 4/4  validation meV/Å 7.812  250 ms/step"


def test_a_resumed_run_counts_from_where_it_is():
    screen = Screen(True)
    train(screen, first_epoch=4)
    drawn = [line.rstrip() for line in screen.getvalue().split("\r")]
    assert drawn[1] == "[###############.....]   75%  epoch 4/4  step 1/100  loss 0.1235"
    assert drawn[-1].startswith("[####################]  100%")
    assert any(line.endswith("2.69k atoms/s  0:05 left") for line in drawn)


@pytest.mark.parametrize("first_epoch", [0, 6])
def test_an_epoch_out_of_range_is_refused(first_epoch):
    with pytest.raises(ValueError, match=f"first_epoch must be from 1 to 5, got {first_epoch}"):
        TrainingProgress(Screen(True), 4, first_epoch)


def test_messages_do_not_tear_the_line():
    screen = Screen(True)
    progress = TrainingProgress(screen, 1, clock=lambda: 0.0)
    progress.message("before")
    progress.update(1, 1, 2, {"loss": 1.0})
    progress.message("short\n")
    progress.message("two\nlines")
    progress.finish()
    progress.message("after")
    line = "[##########..........]   50%  epoch 1/1  step 1/2  loss 1"
    assert screen.lines() == ["before", "short", "two", "lines", line, "after", ""]


def test_warnings_and_logs_become_messages():
    screen, logger = Screen(True), logging.getLogger("torchmdx")
    progress = TrainingProgress(screen, 1, clock=lambda: 0.0)
    progress.update(1, 1, 2, {})
    shown, logger.propagate = warnings.showwarning, False  # pytest listens at the root
    try:
        with progress.taking_messages(), warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("units look wrong", UserWarning, stacklevel=1)
            logging.getLogger("torchmdx.step.captured_step").warning("grown to %d", 12)
            logging.getLogger("torchmdx.step.captured_step").info("not shown")
        assert not logger.handlers
    finally:
        logger.propagate = True
    progress.finish()
    assert warnings.showwarning is shown
    assert screen.lines()[:-2] == ["UserWarning: units look wrong", "warning: grown to 12"]


def test_large_numbers_are_short():
    assert [short(x) for x in (3.14159, 999, 1234, 1234567, 2.5e9)] == ["3.14", "999", "1.23k", "1.23M", "2.5G"]


def test_large_values_have_no_exponent():
    assert shown_value("validation meV/atom", 12345.6) == "validation meV/atom 12,346"
    assert shown_value("loss", 0.12346) == "loss 0.1235"
