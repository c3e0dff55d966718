"""Errors and lost processes: all processes end, and what was written stays."""

import os
import signal
import subprocess
import sys
import time

import pytest
from lammps_checks import STYLE
from mpi import LAUNCHER, ROOT, launch, needs_lammps, setup, write

from torchmdx.lammps.example import water

pytestmark = [needs_lammps, pytest.mark.nightly]
MOVE = "velocity all create 300 1 loop geom\nfix 1 all nve\ntimestep 0.0005\n"


PROGRAM = """
import os, sys
from torchmdx.commands.cli import main
from torchmdx.lammps.session import LammpsSession
from torchmdx.step.domain_step import DomainStep

calls = 0

def counted(work):
    def call(*given, **named):
        global calls
        calls += 1
        if calls == {call} and os.environ["PMI_RANK"] == "1":
            raise MemoryError("no room for 7 atoms")
        return work(*given, **named)
    return call

{where} = counted({where})
sys.exit(main(["lammps", *sys.argv[1:]]))
"""


@pytest.mark.parametrize("where", ["LammpsSession.assign", "DomainStep.__call__", "LammpsSession.numbers"])
def test_an_error_of_one_process_ends_all(tmp_path, model, where):
    """The others wait for it at their next exchange of atoms or sums; its message is what the user sees."""
    write(tmp_path, water(8))
    (tmp_path / "program.py").write_text(PROGRAM.format(where=where, call=3 if "call" in where else 1))
    found = launch(tmp_path, setup(STYLE) + MOVE + "run 20\n", 2, timeout=200, program=["program.py"])
    assert found.status != 0
    assert "torchmdx: MemoryError: no room for 7 atoms" in found.text


def test_positions_that_are_not_finite(tmp_path, model):
    """A force that is not a number, on one atom of one process."""
    write(tmp_path, water(8))
    text = setup(STYLE) + MOVE + "variable f atom (id==3)*1e300*1e300\nfix 2 all addforce v_f 0 0\nrun 5\n"
    found = launch(tmp_path, text, 2, timeout=200)
    assert found.status != 0
    assert "Non-numeric atom coords" in found.text


def test_a_killed_process_ends_the_others(tmp_path, model):
    """And frames written before can be read."""
    write(tmp_path, water(8))
    text = setup(STYLE) + "dump_modify out flush yes\n" + MOVE + "run 1000000\n"
    (tmp_path / "in.test").write_text(text)
    command = [LAUNCHER, "-n", "2", sys.executable, "-m", "torchmdx.commands.cli", "lammps", "-in", "in.test"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as run:
        try:
            dump, end = tmp_path / "dump.0", time.monotonic() + 120
            while not (dump.exists() and dump.read_text().count("TIMESTEP") > 3):
                assert run.poll() is None, run.stdout.read().decode()
                assert time.monotonic() < end
                time.sleep(0.2)
            os.kill(children(run.pid)[1], signal.SIGKILL)
            assert run.wait(timeout=60) != 0
        finally:
            run.kill()
    frames = dump.read_text().split("ITEM: TIMESTEP\n")[1:]
    assert all(len(frame.splitlines()) == 8 + 24 for frame in frames[:-1])


def children(launcher: int) -> list[int]:
    """The processes of LAMMPS that a launcher started, through a proxy of its own."""
    found = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in found.splitlines()[1:]]
    parents = {int(pid): int(parent) for pid, parent, _ in rows}

    def below(pid: int) -> bool:
        while pid in parents:
            pid = parents[pid]
            if pid == launcher:
                return True
        return False

    return [int(pid) for pid, _, text in rows if "torchmdx.commands.cli" in text and below(int(pid))]
