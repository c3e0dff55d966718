import io

from screens import Screen

from torchmdx.datasets.labelling.progress import LabellingProgress


def drawn(stream, seconds, total, done, failed, before=0) -> str:
    """The last line after `done` more things in so many seconds."""
    times = [0.0]
    progress = LabellingProgress(stream, "frames labelled", before, total, lambda: times[0])
    for number in range(done):
        progress.advance(failed=number < failed)
    times[0] = seconds
    progress.finish()
    return stream.getvalue().splitlines()[-1].strip()


def test_a_file_gets_share_failures_speed_and_time_left():
    assert drawn(io.StringIO(), 10.0, 100, 25, 2) == " 25%  25/100 frames labelled  2 failed  2.5/s  0:30 left".strip()
    assert drawn(io.StringIO(), 100.0, 50, 10, 0) == "20%  10/50 frames labelled  10.0 s each  6:40 left"
    assert drawn(io.StringIO(), 1.0, 5000, 2000, 0) == "40%  2,000/5,000 frames labelled  2,000/s  0:02 left"


def test_what_was_done_before_counts_for_the_share_but_not_for_the_speed():
    assert drawn(io.StringIO(), 10.0, 100, 10, 0, before=40) == "50%  50/100 frames labelled  1/s  0:50 left"


def test_a_terminal_gets_a_bar(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert drawn(Screen(terminal=True), 0.0, 4, 1, 0) == "[#####...............]   25%  1/4 frames labelled"


def test_nearly_done_is_not_done():
    assert drawn(io.StringIO(), 0.0, 1000, 999, 0).startswith("99%")
