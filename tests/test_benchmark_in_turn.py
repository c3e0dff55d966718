"""benchmarks/in_turn.py: set-ups side by side, measurements one after the other."""

import sys

from documents.blocks import ROOT

sys.path.append(str(ROOT))

from benchmarks import in_turn

CHILD = f"""
import json, sys, time
sys.path.append({str(ROOT)!r})
from benchmarks import in_turn
set_up, measure, status = json.loads(sys.argv[1])
began = time.monotonic()
time.sleep(set_up)
in_turn.my_turn()
start = time.monotonic()
time.sleep(measure)
print("a line of a library")
print(json.dumps(dict(began=began, start=start, end=time.monotonic())), flush=True)
sys.exit(status)
"""


def run(*cases: tuple[float, float, int], seconds: float = 60.0, at_once: int = 8) -> list[in_turn.Ended]:
    commands = [[sys.executable, "-c", CHILD, str(list(case))] for case in cases]
    return list(in_turn.run(commands, seconds, at_once))


def test_measurements_wait_for_all_set_ups_and_for_each_other():
    rows = [in_turn.rows(ended)[0] for ended in run((0.0, 0.2, 0), (0.5, 0.2, 0), (0.0, 0.0, 0))]
    assert max(row["began"] for row in rows) < min(row["start"] for row in rows)
    assert rows[0]["start"] - rows[1]["began"] >= 0.5
    assert rows[0]["end"] <= rows[1]["start"]
    assert rows[1]["end"] <= rows[2]["start"]


def test_no_more_are_set_up_than_asked_for():
    first, second = (in_turn.rows(ended)[0] for ended in run((0.0, 0.0, 0), (0.0, 0.0, 0), at_once=1))
    assert first["end"] <= second["began"]


def test_one_that_fails_or_takes_too_long_does_not_end_the_others():
    ended = run((0.0, 0.0, 3), (30.0, 0.0, 0), (0.0, 30.0, 0), (0.0, 0.0, 0), seconds=3.0)
    assert [one.why for one in ended] == ["exit status 3", "did not end in 3 s", "did not end in 3 s", ""]
    assert [len(in_turn.rows(one)) for one in ended] == [1, 0, 0, 1]


def test_a_process_that_no_one_waits_for_does_not_wait():
    import subprocess

    done = subprocess.run([sys.executable, "-c", CHILD, "[0.0, 0.0, 0]"], stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 0
