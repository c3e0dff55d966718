"""The progress line of a simulation, in a file and on a terminal."""

import pytest
from screens import Screen

from torchmdx.dynamics.log import LogRow
from torchmdx.dynamics.run.progress import SimulationProgress, duration, ns_per_day


def drawn(terminal: bool) -> str:
    """A run of 1,000 steps of 0.5 fs, ten in a second."""
    screen, now = Screen(terminal), [0.0]
    progress = SimulationProgress(screen, 0, 1000, 0.5, clock=lambda: now[0])
    for step in range(0, 1001, 10):
        now[0] = step / 10
        progress.update(step, LogRow(step, 0, -10.0, 0.5, 299.6), last=step == 1000)
    progress.finish()
    return screen.getvalue()


def test_progress_on_a_terminal_is_one_line(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    text = drawn(terminal=True)
    assert text.count("\n") == 1
    lines = text.rstrip("\n").split("\r")[1:]
    assert len(lines) == 101
    # 10 steps a second of 0.5 fs are 86,400 * 10 * 0.5e-6 = 0.432 ns/day.
    half = "[##########..........]   50%  step 500/1,000  0.250 ps  300 K  -9.5000 eV  0.432 ns/day  0:50 left"
    assert half in [line.rstrip() for line in lines]
    monkeypatch.setenv("COLUMNS", "40")
    assert max(len(line) for line in drawn(terminal=True).split("\r")) <= 40


def test_the_expected_end_of_a_run_can_change():
    screen = Screen(False)
    progress = SimulationProgress(screen, 0, 1000, 0.5, clock=lambda: 0.0)
    progress.expect(200)
    progress.update(100, None, last=True)
    assert " 50%  step 100/200" in screen.getvalue()


def test_progress_in_a_file_is_a_line_now_and_then():
    lines = drawn(terminal=False).splitlines()
    assert [line.split("/")[0].split()[-1] for line in lines] == ["0", "300", "600", "900", "1,000"]
    assert lines[0] == "  0%  step 0/1,000  0.000 ps  300 K  -9.5000 eV"
    assert lines[-1].startswith("100%  step 1,000/1,000")


def test_durations_and_speeds():
    assert [duration(seconds) for seconds in (0, 59.6, 754, 3723, 273906)] == [
        "0:00",
        "1:00",
        "12:34",
        "1:02:03",
        "3 d 04:05:06",
    ]
    assert ns_per_day(1e6 / 86.4, 1.0) == pytest.approx(1000)
