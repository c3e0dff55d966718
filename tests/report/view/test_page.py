import re
import sys

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from pages import array, data_of, distances, positions_of

from torchmdx.report.view.arrange import movie_of
from torchmdx.report.view.page import elements_data, is_page, movie_data, require_plotly, summary, write_movie
from torchmdx.report.view.read import of_structures

pytest.importorskip("plotly")


@pytest.fixture
def movie():
    frames = []
    for seed in range(4):
        atoms = molecule("CH3CH2OH")
        atoms.rattle(0.1, seed=seed)
        frames.append(atoms)
    return movie_of(of_structures(frames, title="</script><b>&"))


def test_a_page_is_one_file_that_fetches_nothing(tmp_path, movie):
    write_movie(tmp_path / "page.html", movie)
    text = (tmp_path / "page.html").read_text()
    own = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert not re.search(r"""(src|href)=["']""", own)
    assert "default-src 'none'" in own
    assert "connect-src" not in own
    assert len(re.findall(r"<script", own)) == 1  # the data; a title cannot end it
    assert "<title>&lt;/script&gt;&lt;b&gt;&amp;</title>" in own
    assert data_of(tmp_path / "page.html")["title"] == "</script><b>&"
    assert is_page(tmp_path / "page.html")
    assert "@@" not in own


def test_other_files_are_no_pages(tmp_path):
    (tmp_path / "other.html").write_text("<html>torchmdx view</html>")
    assert not is_page(tmp_path / "other.html")


def test_positions_of_all_frames(tmp_path, movie):
    write_movie(tmp_path / "page.html", movie)
    data = data_of(tmp_path / "page.html")
    found = positions_of(data)
    assert found.shape == (4, 9, 3)
    assert distances(found) == pytest.approx(distances(np.array(movie.positions)), abs=1e-3)
    assert array(data["kinds"][0]["numbers"], "<u1").tolist() == molecule("CH3CH2OH").numbers.tolist()
    assert array(data["kinds"][0]["pairs"], "<u2").reshape(-1, 2).tolist() == movie.kinds[0].pairs.tolist()
    assert data["captions"] == ["frame 0", "frame 1", "frame 2", "frame 3"]
    assert data["summary"].startswith("C2H6O, 9 atoms, 4 frames; torchmdx")


def test_cells_are_written_once_unless_they_change():
    crystal, larger = bulk("Cu", cubic=True), bulk("Cu", a=3.8, cubic=True)
    same = movie_data(movie_of(of_structures([crystal, crystal], title="t")))
    assert array(same["cells"], "<f4") == pytest.approx(np.diag([3.61] * 3).ravel())
    moving = movie_data(movie_of(of_structures([crystal, larger], title="t")))
    assert array(moving["cells"], "<f4").reshape(2, 9)[1] == pytest.approx(np.diag([3.8] * 3).ravel())
    assert movie_data(movie_of(of_structures([Atoms("H")], title="t")))["cells"] is None


def test_elements_have_the_colours_of_jmol():
    found = elements_data(np.array([1, 8, 11]))
    assert found["8"]["symbol"] == "O"
    assert found["8"]["colour"] == "#ff0d0d"
    assert found["11"]["radius"] < 0  # ions have no bonds
    assert found["1"]["size"] < found["8"]["size"] < found["11"]["size"]


@pytest.mark.nightly
def test_the_largest_page_is_below_ten_megabytes(tmp_path):
    random = np.random.default_rng(0)
    atoms = bulk("Cu", cubic=True) * (11, 11, 12)
    atoms.rattle(0.1, seed=1)
    frames = [Atoms(atoms.numbers, atoms.positions + random.normal(0, 0.1, atoms.positions.shape)) for _ in range(3)]
    found = of_structures(frames, title="large")
    found.positions = found.positions * 40
    found.numbers, found.cells, found.pbc = (values * 40 for values in (found.numbers, found.cells, found.pbc))
    found.captions, found.x, found.indices = found.captions * 40, np.arange(120.0), np.arange(120)
    found.num_frames = 120
    found.labels = [f"CU 1 CU{k}" for k in range(len(atoms))]
    movie = movie_of(found)
    write_movie(tmp_path / "page.html", movie)
    assert movie.num_frames < 120
    assert (tmp_path / "page.html").stat().st_size < 10_000_000


def test_without_plotly(monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(ImportError, match=r"interactive pages need plotly.*pip install 'torchmdx\[view\]'"):
        require_plotly()


def test_the_summary_of_a_crystal_is_that_of_the_file():
    movie = movie_of(of_structures([bulk("MgO", "rocksalt", a=4.21)], title="crystal"))
    assert np.prod(movie.repeats) > 1
    assert summary(movie).startswith("MgO, 2 atoms, 1 frame;")
