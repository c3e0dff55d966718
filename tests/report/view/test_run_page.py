import numpy as np
import pytest
from ase.build import molecule
from pages import data_of, distances, positions_of

from torchmdx.dynamics.trajectory import Trajectory, TrajectoryFrame
from torchmdx.report.view.recording import ThinnedSteps
from torchmdx.report.view.run_page import write_relaxation_page, write_run_page

pytest.importorskip("plotly")


@pytest.fixture
def run(tmp_path):
    water = molecule("H2O")
    trajectory = Trajectory.create(tmp_path / "run.dcd", 3, 10, False, 1.0)
    for _ in range(3):
        trajectory.append(TrajectoryFrame(water.positions, None))
    trajectory.close()
    (tmp_path / "run.log").write_text(
        "step,time_ps,potential_eV,kinetic_eV,total_eV,temperature_K,ns_per_day\n"
        "0,0.0,-10,1,-9,300,\n10,0.01,-10.5,1.5,-9,310,2\n"
    )
    return tmp_path


def test_the_page_of_a_run(run):
    water = molecule("H2O")
    page = run / "run.html"
    assert write_run_page(
        page, run / "run.dcd", water.numbers, title="water: NVT", log=run / "run.log", temperature=300.0
    )
    data = data_of(page)
    assert distances(positions_of(data)) == pytest.approx(np.array([distances(water.positions)] * 3), abs=1e-3)
    assert [panel["title"] for panel in data["panels"]] == ["energy / eV, relative to -9.000", "temperature / K"]
    assert data["panels"][1]["level"] == 300.0
    assert data["x"] == pytest.approx([0.0, 0.01, 0.02])


@pytest.mark.parametrize("problem", ["plotly", "disk", "log"])
def test_a_page_that_fails_is_one_line_and_no_error(run, capsys, monkeypatch, problem):
    page = run / "run.html"
    if problem == "plotly":

        def require():
            raise ImportError("interactive pages need plotly")

        monkeypatch.setattr("torchmdx.report.view.run_page.require_plotly", require)
    elif problem == "disk":
        page = run / "missing" / "run.html"
    else:
        (run / "run.log").write_text("something else")
    assert not write_run_page(page, run / "run.dcd", molecule("H2O").numbers, title="t", log=run / "run.log")
    err = capsys.readouterr().err
    assert err.startswith("no page: ")
    assert err.count("\n") == 1
    assert not page.exists()


def test_the_page_of_a_relaxation(tmp_path):
    recording = ThinnedSteps()
    for step in range(3):
        atoms = molecule("H2O")
        atoms.positions *= 1 + 0.01 * step
        recording.add(atoms)
    assert write_relaxation_page(tmp_path / "relaxed.html", recording, title="water")
    data = data_of(tmp_path / "relaxed.html")
    assert data["captions"] == ["step 0", "step 1", "step 2"]
    assert data["title"] == "water"
