"""Trajectory compared with OpenMM's writer, log, progress line, plot."""

import io

import numpy as np
import pytest
from dcd import read_dcd

pytest.importorskip("openmm", reason="needs OpenMM: pip install 'torchmdx[openmm]'")

from openmm import Vec3, app, unit

from torchmdx.dynamics.log import Log, LogRow, columns_of, read_log
from torchmdx.dynamics.run.plot import plot_log
from torchmdx.dynamics.run.progress import SimulationProgress, duration, ns_per_day
from torchmdx.dynamics.trajectory import HEADER_BYTES, Trajectory

TRICLINIC = np.array([[20.0, 0, 0], [3.0, 18.0, 0], [-4.0, 5.0, 16.0]])
TIMESTEP, TITLES = slice(44, 48), slice(100, 260)
PLAIN, BOXED = (columns_of(periodic=periodic, ensemble=False) for periodic in (False, True))


@pytest.mark.parametrize("cell", [None, TRICLINIC])
def test_a_trajectory_matches_the_writer_of_openmm(tmp_path, cell):
    topology = app.Topology()
    residue = topology.addResidue("MOL", topology.addChain())
    for index in range(5):
        topology.addAtom(f"C{index}", app.element.carbon, residue)
    if cell is not None:
        topology.setPeriodicBoxVectors([Vec3(*row) for row in cell / 10] * unit.nanometer)
    frames = np.random.default_rng(1).normal(0, 30, (3, 5, 3))
    ours = Trajectory.create(tmp_path / "ours.dcd", 5, 25, cell is not None, 0.5)
    with (tmp_path / "theirs.dcd").open("w+b") as file:
        theirs = app.DCDFile(file, topology, 0.5 * unit.femtosecond, 0, 25)
        for positions in frames:
            ours.write(positions, cell)
            theirs.writeModel(positions * unit.angstrom)
    ours.close()
    found, wanted = ((tmp_path / name).read_bytes() for name in ("ours.dcd", "theirs.dcd"))
    assert len(found) == len(wanted)
    assert found[: TIMESTEP.start] == wanted[: TIMESTEP.start]
    assert found[TIMESTEP.stop : TITLES.start] == wanted[TIMESTEP.stop : TITLES.start]
    assert found[TITLES.stop : HEADER_BYTES] == wanted[TITLES.stop : HEADER_BYTES]
    found, wanted = read_dcd(tmp_path / "ours.dcd"), read_dcd(tmp_path / "theirs.dcd")
    assert found["timestep"] == pytest.approx(wanted["timestep"], rel=1e-6)
    np.testing.assert_allclose(found["frames"], wanted["frames"], atol=1e-5)
    if cell is not None:
        np.testing.assert_allclose(found["cells"], wanted["cells"], atol=1e-9)


def test_a_trajectory_is_truncated_and_continued(tmp_path):
    path = tmp_path / "t.dcd"
    frames = np.arange(60.0).reshape(5, 4, 3)
    trajectory = Trajectory.create(path, 4, 10, False, 1.0)
    for positions in frames:
        trajectory.write(positions, None)
    trajectory.close()
    path.write_bytes(path.read_bytes() + b"part of a frame")
    trajectory = Trajectory.reopen(path, 4, 10, False, 2)
    assert read_dcd(path)["last"] == 10
    trajectory.write(frames[4], None)
    trajectory.close()
    back = read_dcd(path)
    np.testing.assert_array_equal(back["frames"], frames[[0, 1, 4]])
    assert (back["last"], back["interval"]) == (20, 10)
    for wrong in ((5, 10, False, 1), (4, 10, True, 1)):
        with pytest.raises(ValueError, match=f"must be a trajectory of {wrong[0]} atoms"):
            Trajectory.reopen(path, *wrong)
    with pytest.raises(ValueError, match="must hold the 4 frames up to the checkpoint, got 3"):
        Trajectory.reopen(path, 4, 10, False, 4)
    assert len(read_dcd(path)["frames"]) == 3


def test_a_log_is_truncated_and_continued(tmp_path):
    path = tmp_path / "t.log"
    log = Log.create(path, BOXED)
    for step in (0, 5, 10, 15):
        log.write(LogRow(step, step * 1e-3, -7.25, 1.5, 300.0, 1000.0, 0.9, None if step == 0 else 2.5))
    log.close()
    path.write_text(path.read_text() + "20,0.02,-7.2")
    for step in (20, 99):
        with pytest.raises(ValueError, match=f"must hold the {step // 5 + 1} rows up to step {step}, got 4"):
            Log.bytes_up_to(step, path, BOXED, 5)
    with pytest.raises(ValueError, match="must be a log whose first line is 'step,.*temperature_K,ns_per_day'"):
        Log.bytes_up_to(10, path, PLAIN, 5)
    log = Log.reopen(path, Log.bytes_up_to(12, path, BOXED, 5))
    log.write(LogRow(15, 0.015, -1, 2.0, 310.0, 990.0, 0.95))
    log.close()
    columns = read_log(path)
    names = path.read_text().splitlines()[0]
    assert names.startswith("step,time_ps,potential_eV,kinetic_eV,total_eV,temperature_K,")
    assert names.endswith(",volume_A3,density_g_per_cm3,ns_per_day")
    assert list(columns) == names.split(",")
    assert list(columns["step"]) == [0, 5, 10, 15]
    assert list(columns["total_eV"]) == [-5.75, -5.75, -5.75, 1.0]
    np.testing.assert_array_equal(columns["ns_per_day"], [np.nan, 2.5, 2.5, np.nan])


class Screen(io.StringIO):
    """A stream that may be a terminal."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


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


@pytest.mark.parametrize("volumes", [None, [1000.0, 1001.0, 1003.0], [1000.0] * 3])
def test_a_plot_has_panels_for_the_quantities_that_change(tmp_path, monkeypatch, volumes):
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    from matplotlib.figure import Figure

    figures, save = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (figures.append(self), save(self, *a, **k)))
    log = Log.create(tmp_path / "t.log", PLAIN if volumes is None else BOXED)
    for step in range(3):
        box = {} if volumes is None else {"volume": volumes[step], "density": 1.0}
        log.write(LogRow(step, step * 0.5, -5.0 + step, 2.0, 290.0 + step, **box))
    log.close()
    plot_log(tmp_path / "t.log", tmp_path / "t.png", "title", 300.0)
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")
    panels = figures[0].axes
    moves = volumes is not None and len(set(volumes)) > 1
    labels = ["energy - E₀ / eV", "temperature / K", "volume / Å³"][: 3 if moves else 2]
    assert [panel.get_ylabel() for panel in panels] == labels
    assert panels[-1].get_xlabel() == "time / ps"
    potential, total = panels[0].lines
    np.testing.assert_allclose(potential.get_ydata(), [-2, -1, 0])
    np.testing.assert_allclose(total.get_ydata(), [0, 1, 2])
    assert panels[0].get_title(loc="left") == "E₀ = -3.0000 eV, the total energy at the start"
    assert [line.get_ydata()[0] for line in panels[1].lines] == [290.0, 300.0]
