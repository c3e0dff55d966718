"""What both engines of `torchmdx md` do before and after their steps."""

import argparse
import dataclasses
import errno
import signal
from pathlib import Path
from types import SimpleNamespace

import ase.io
import numpy as np
import pytest
from md_runs import md, read_for_openmm

from torchmdx.dynamics.integrators import Langevin
from torchmdx.dynamics.log import Log, LogRow, columns_of
from torchmdx.dynamics.run import stages
from torchmdx.dynamics.run.files import RunFiles
from torchmdx.dynamics.run.settings import RunSettings

SETTINGS = RunSettings(
    potential=None, schedule=None, ensemble="nvt", integrator=Langevin(), timestep=0.5, num_steps=1, temperature=300.0,
    pressure=None, barostat=None, seed=None,
)  # fmt: skip


def options(**given):
    return argparse.Namespace(**{"file": "a.xyz", "velocities": None, "minimize": False, "temperature": None} | given)


def test_a_seed_is_that_of_the_options_of_the_run_before_or_random():
    assert stages.with_seed(SETTINGS, {"seed": 7}).seed == 7
    seeds = {stages.with_seed(SETTINGS, {}).seed for _ in range(3)}
    assert len(seeds) == 3
    assert all(0 <= seed < 2**32 for seed in seeds)
    chosen = stages.with_seed(SETTINGS, {"seed": 0})
    assert chosen.seed == 0
    assert stages.with_seed(chosen, {"seed": 7}) is chosen


def test_whether_a_run_starts_with_stored_velocities():
    starts = stages.starts_with_stored
    assert starts(options(), True, "nvt")
    assert starts(options(velocities="file", minimize=True), True, "nve")
    assert not starts(options(), False, "nvt")
    assert not starts(options(velocities="new", temperature=300.0), True, "nve")
    assert not starts(options(minimize=True), True, "nvt")
    with pytest.raises(ValueError, match="--velocities file needs velocities in the file, got 'a.xyz' without any"):
        starts(options(velocities="file"), False, "nvt")
    with pytest.raises(ValueError, match="--temperature applies to new velocities, but 'a.xyz' has velocities"):
        starts(options(temperature=300.0), True, "nve")


class Recording:
    """A recording at step 8 whose last checkpoint is of step 5."""

    step, saved_step, closed = 8, 5, False

    def __init__(self, error=None):
        self.error = error

    def run(self, num_steps, *, interrupted, progress):
        if self.error is not None:
            self.step += 1
            raise self.error
        progress(self.step + num_steps, None)
        return self.step + num_steps

    def close(self):
        self.closed = True


def test_a_run_goes_to_its_end_and_closes_its_files(capsys):
    settings, going = dataclasses.replace(SETTINGS, num_steps=12), SimpleNamespace(received=None)
    recording = Recording()
    assert stages.go(recording, settings, going, restart=True) == 0
    assert recording.closed
    printed = capsys.readouterr()
    assert "continuing from step 8" in printed.out
    assert "100%  step 12/12" in printed.err


def test_a_restart_needs_something_to_do():
    recording, settings = Recording(), dataclasses.replace(SETTINGS, num_steps=8)
    with pytest.raises(ValueError, match="--restart needs more steps than the 8 completed, got 8"):
        stages.go(recording, settings, SimpleNamespace(received=None), restart=True)
    assert recording.closed


def test_a_write_that_failed_says_where_the_run_continues():
    settings, going = dataclasses.replace(SETTINGS, num_steps=12), SimpleNamespace(received=None)
    recording = Recording(OSError(errno.ENOSPC, "'a.dcd' is full"))
    words = "step 9: 'a.dcd' is full; when it can be, the same command with --restart continues from step 5"
    with pytest.raises(OSError, match=words):
        stages.go(recording, settings, going, restart=False)
    assert recording.closed
    recording.saved_step, recording.error = None, OSError("no")
    with pytest.raises(OSError, match="from step 0"):
        stages.go(recording, settings, going, restart=False)
    with pytest.raises(BrokenPipeError, match="^$"):
        stages.go(Recording(BrokenPipeError()), settings, going, restart=False)


def test_summaries(tmp_path):
    files = RunFiles(str(tmp_path / "run"), 2)
    for number, path in enumerate(files.logs):
        log = Log.create(path, columns_of(periodic=False, ensemble=False))
        for step in range(3):
            speed = 2.5 if step else None
            log.write(LogRow(step, 0.0, -1.0, 1.0, 300.0 + 10 * number, speed=speed))
        log.close()
    expected = "frames: 5, log rows: 3; mean temperature of 300.0 to 310.0 K in 2 replicas, 2.5 ns/day; and more"
    assert stages.summary(files, 5, "; and more") == expected
    assert stages.wrote([Path("a"), Path("b")]) == "wrote a, b"
    assert stages.wrote([Path(f"{k}") for k in range(12)]) == "wrote 0, 1, 2, ... (7 files), 10, 11"


def test_pictures_are_named_if_they_have_been_drawn(tmp_path, monkeypatch, capsys):
    files, drawn = RunFiles(str(tmp_path / "run")), []
    structure = SimpleNamespace(atomic_numbers=[1], labels=lambda: ["H"])
    monkeypatch.setattr(stages, "plot_log", lambda *given: drawn.append(given))
    monkeypatch.setattr(stages, "write_run_page", lambda path, *given, **named: drawn.append(named) or True)
    assert stages.draw(files, "title", 300.0, structure, page=True) == [files.plot, files.page]
    assert drawn[0] == (files.logs[0], files.plot, "title", 300.0)
    assert drawn[1] == dict(title="title", labels=["H"], log=files.logs[0], temperature=300.0)
    assert stages.draw(files, "title", None, structure, page=False) == [files.plot]

    def missing(*given):
        raise ImportError

    monkeypatch.setattr(stages, "plot_log", missing)
    assert stages.draw(files, "title", None, structure, page=False) == []
    assert "no plot: matplotlib is not installed" in capsys.readouterr().err


def test_a_signal_is_told_with_the_step(capsys):
    assert stages.status_after(SimpleNamespace(received=None), 5, 10) == 0
    assert capsys.readouterr().err == ""
    assert stages.status_after(SimpleNamespace(received=signal.SIGINT, status=130), 1500, 2000) == 130
    assert (
        stages.status_after(SimpleNamespace(received=signal.SIGTERM, status=143), 1500, 2000) == stages.CONTINUE == 75
    )
    assert "stopped by SIGTERM at step 1,500 of 2,000; the same command with --restart" in capsys.readouterr().err
    # A run that is complete has nothing to continue.
    assert stages.status_after(SimpleNamespace(received=signal.SIGTERM, status=143), 2000, 2000) == 0
    assert capsys.readouterr().err == ""


def test_a_timestep_that_is_too_long_is_warned_of():
    structure = SimpleNamespace(atomic_numbers=np.array([1]), masses=np.array([1.008]), fixed=np.array([False]))
    stages.warn_of_timestep(structure, 0.5)
    with pytest.warns(UserWarning, match="a timestep of 4 fs is too long for hydrogens"):
        stages.warn_of_timestep(structure, 4.0)


def test_hydrogens_limit_the_timestep(ethanol_file):
    pytest.importorskip("openmm", reason="needs OpenMM: pip install 'torchmdx[openmm]'")
    structure = read_for_openmm(ethanol_file)
    assert stages.doubt_about_timestep(structure, 1.0) is None
    assert "3 fs is too long for hydrogens of 1.008 amu" in stages.doubt_about_timestep(structure, 3.0)
    said = "--timestep should be at most 1.25, or 1.7 times that with --hydrogen-mass 3"
    assert said in stages.doubt_about_timestep(structure, 3.0)
    heavy = dataclasses.replace(structure, masses=np.where(structure.atomic_numbers == 1, 4.032, structure.masses))
    assert stages.doubt_about_timestep(heavy, 2.4) is None
    assert stages.doubt_about_timestep(heavy, 2.6).endswith("at most 2.50")
    still = dataclasses.replace(structure, fixed=structure.atomic_numbers == 1)
    assert stages.doubt_about_timestep(still, 5.0) is None
    assert stages.doubt_about_timestep(structure, 0.5, 4) is None
    assert "an outer step of 5 x 0.5 fs is too long" in stages.doubt_about_timestep(structure, 0.5, 5)
    assert stages.doubt_about_timestep(heavy, 1.0, 4) is None
    assert stages.doubt_about_timestep(heavy, 1.0, 5).endswith("outer steps should be at most 4.01 fs")
    salt = ase.io.read(ethanol_file)[:2]
    ase.io.write("carbon.xyz", salt, format="extxyz")
    assert stages.doubt_about_timestep(read_for_openmm("carbon.xyz"), 5.0) is None


@pytest.mark.filterwarnings("always")
def test_a_run_warns_before_it_begins(capsys, model, ethanol_file, unplotted):
    pytest.importorskip("openmm", reason="needs OpenMM: pip install 'torchmdx[openmm]'")
    assert md(ethanol_file, model, "run", "--steps", 1, "--timestep", 3) == 0
    assert "torchmdx: warning: a timestep of 3 fs is too long for hydrogens of 1.008 amu" in capsys.readouterr().err
