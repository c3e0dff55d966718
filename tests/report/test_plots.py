"""Pictures: that they are drawn for odd data too, and what stands in them."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
from frame_sets import frames_of, molecules

pytest.importorskip("matplotlib")

from torchmdx.report import plots, style
from torchmdx.report.errors import Errors
from torchmdx.report.moments import Moments, Sample
from torchmdx.report.predictions import Predictions
from torchmdx.report.scales import MILLI_EV

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def figures(monkeypatch):
    """The figures that were drawn."""
    from matplotlib.figure import Figure

    found, real = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (found.append(self), real(self, *a, **k))[1])
    return found


def errors_of(energy_error, force_error, structures=None) -> Errors:
    errors = Errors()
    frames = frames_of(molecules(8) if structures is None else structures)
    random = np.random.default_rng(0)
    frames.forces[:] = random.normal(0, 1, frames.forces.shape)
    energy = frames.energy + energy_error * random.normal(1, 0.1, len(frames))
    forces = frames.forces + force_error * random.normal(0, 1, frames.forces.shape)
    errors.add(Predictions(np.arange(len(frames)), frames, energy, forces.astype(float), None))
    return errors


def history(**columns):
    length = len(next(iter(columns.values())))
    return {"epoch": np.arange(1.0, length + 1), **{name: np.array(values, float) for name, values in columns.items()}}


def test_learning_curves_are_logarithmic_and_name_the_best(tmp_path, figures):
    columns = dict(
        lr=[1e-3, 5e-4, 1e-4, 1e-6],
        train_energy=[90, 30, 10, 5],
        validation_energy=[np.nan, 40, 12.3, 13],
        train_forces=[3.1, 3.0, 2.9, 2.8],
        comment_of_others=[1, 2, 3, 4],
    )
    assert plots.learning_curves(tmp_path / "c.png", history(**columns))
    assert (tmp_path / "c.png").read_bytes().startswith(PNG)
    energy, forces, rate = figures[0].axes
    assert [panel.get_ylabel() for panel in figures[0].axes] == [
        "energy MAE / meV/atom",
        "force MAE / meV/Å",
        "learning rate",
    ]
    assert [panel.get_yscale() for panel in (energy, forces, rate)] == ["log", "linear", "log"]
    assert "validation,\nlowest 12.3\nin epoch 3" in energy.get_legend_handles_labels()[1]
    train = next(line for line in energy.lines if line.get_label() == "train")
    assert train.get_ydata().tolist() == [90, 30, 10, 5]
    assert train.get_xdata().tolist() == [1, 2, 3, 4]
    assert rate.get_xlabel() == "epoch"


@pytest.mark.parametrize(
    "columns",
    [dict(train_energy=[4.0]), dict(lr=[0.0, 0.0]), dict(train_energy=[0, 5, 100], validation_energy=[np.nan] * 3)],
)
def test_short_and_odd_histories_are_drawn(tmp_path, columns):
    assert plots.learning_curves(tmp_path / "c.png", history(**columns))


def test_nothing_to_draw_is_no_file(tmp_path):
    empty = Errors()
    assert not plots.learning_curves(tmp_path / "c.png", history(seconds=[1.0, 2.0]))
    assert not plots.learning_curves(tmp_path / "c.png", history(train_energy=[np.nan]))
    assert not plots.errors_by_element(tmp_path / "c.png", {"a": empty}, MILLI_EV.forces)
    assert not plots.errors_by_size(tmp_path / "c.png", {"a": empty}, MILLI_EV.energy, forces=False)
    assert not plots.error_histogram(tmp_path / "c.png", {"a": empty.energy_errors}, MILLI_EV.energy, "t")
    assert list(tmp_path.iterdir()) == []


def test_a_parity_plot_says_the_errors_and_holds_the_points(tmp_path, figures):
    sample, labels = Sample(), np.linspace(-2, 3, 50)
    sample.add(labels, labels + 0.01)
    moments = Moments.of(np.full(50, 0.01))
    plots.parity(
        tmp_path / "p.png", sample, moments, MILLI_EV.forces, MILLI_EV.label_forces, "force component", title="test"
    )
    (panel,) = figures[0].axes
    assert panel.get_title(loc="left") == "test\nMAE 10.0, RMSE 10.0 meV/Å"
    assert panel.get_xlabel() == "force component, label / eV/Å"
    points = panel.collections[0].get_offsets()
    np.testing.assert_allclose(np.sort(points, 0), np.stack([labels, labels + 0.01], 1))
    assert panel.get_xlim() == panel.get_ylim()
    assert panel.get_xlim()[0] < -2
    assert panel.get_xlim()[1] > 3.01


def test_a_parity_plot_draws_few_of_many_and_the_furthest_off(tmp_path, figures):
    sample, random = Sample(size=40_000, num_extreme=5), np.random.default_rng(0)
    labels = random.normal(0, 1, 100_000)
    predicted = labels + random.normal(0, 0.01, 100_000)
    predicted[123] = labels[123] + 4
    sample.add(labels, predicted)
    moments = Moments.of(predicted - labels)
    plots.parity(tmp_path / "p.png", sample, moments, MILLI_EV.forces, MILLI_EV.label_forces, "force", title="test")
    points = np.asarray(figures[0].axes[0].collections[0].get_offsets())
    assert len(points) == plots.MOST_POINTS + 5
    assert np.abs(points[:, 1] - points[:, 0]).max() == pytest.approx(4)
    shades = np.asarray(figures[0].axes[0].collections[0].get_array())
    middle, edge = np.abs(points[:, 0]) < 0.2, np.abs(points[:, 0]) > 2.5
    assert shades[middle].mean() > shades[edge].mean()


@pytest.mark.parametrize("labels", [[5.0], [-1234.5, -1234.5001, -1234.4999], [0.0, 0.0]])
def test_labels_that_hardly_differ_can_be_read(tmp_path, figures, labels):
    sample = Sample()
    sample.add(labels, labels)
    moments = Moments.of(np.zeros(len(labels)))
    plots.parity(tmp_path / "p.png", sample, moments, MILLI_EV.energy, MILLI_EV.label_energy, "energy", title="t")
    label = figures[0].axes[0].get_xlabel()
    assert ("+ 1234.5" in label) == (labels[0] < -1000)
    texts = [tick.get_text() for tick in figures[0].axes[0].get_xticklabels()]
    assert len(set(texts)) == len(texts)


def test_bars_by_element_and_size(tmp_path, figures):
    sets = {"train": errors_of(0.1, 0.01), "test": errors_of(0.2, 0.02)}
    assert plots.errors_by_element(tmp_path / "e.png", sets, MILLI_EV.forces)
    assert plots.errors_by_size(tmp_path / "s.png", sets, MILLI_EV.energy, forces=False)
    panel = figures[0].axes[0]
    assert [tick.get_text() for tick in panel.get_xticklabels()] == ["H", "C", "N", "O"]
    heights = [bar.get_height() for bar in panel.patches]
    wanted = [1000 * errors.forces_by_element.of[z].mae for errors in sets.values() for z in (1, 6, 7, 8)]
    assert heights == pytest.approx(wanted)
    # Twice ethanol, water, methane and ammonia: 12 + 4 + 8 + 6 hydrogen atoms.
    assert [text.get_text() for text in panel.texts] == ["30", "6", "2", "4"] * 2
    assert panel.get_legend_handles_labels()[1] == ["train", "test"]
    panel = figures[1].axes[0]
    assert [tick.get_text() for tick in panel.get_xticklabels()] == ["3", "4", "5", "9"]
    assert [text.get_text() for text in panel.texts] == ["2"] * 8


def test_sizes_are_grouped_when_there_are_many():
    assert plots.size_bins([3, 9, 21]) == [(3, 3), (9, 9), (21, 21)]
    bins = plots.size_bins(list(range(3, 97)))
    assert len(bins) == plots.MOST_BARS
    assert (bins[0][0], bins[-1][1]) == (3, 96)
    assert all(low <= high for low, high in bins)
    assert all(after[0] == before[1] + 1 for before, after in itertools.pairwise(bins))
    sparse = plots.size_bins([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 5000])
    assert len(sparse) == 2
    assert sum(low <= 5000 <= high for low, high in sparse) == 1


def test_a_histogram_counts_everything(tmp_path, figures):
    random = np.random.default_rng(0)
    errors = {"train": random.normal(0, 0.01, 4000), "test": random.normal(0, 0.02, 300)}
    errors["test"][0] = 5.0
    assert plots.error_histogram(tmp_path / "h.png", errors, MILLI_EV.forces, "Forces")
    (panel,) = figures[0].axes
    for patch in panel.patches:
        assert patch.get_data().values.sum() == pytest.approx(100)
    low, high = panel.get_xlim()
    assert low == -high
    assert high < 200
    assert panel.get_xlabel() == "predicted − label / meV/Å"
    assert plots.error_histogram(tmp_path / "h.png", {"a": np.zeros(3)}, MILLI_EV.forces, "Forces")


def test_colours_are_the_same_in_every_report():
    found = style.colours(["data.xyz", "test", "train"])
    assert found["test"] == style.colours(["test"])["test"] == style.KNOWN["test"]
    assert len(set(found.values())) == 3
    assert len(style.colours([f"set {k}" for k in range(40)])) == 40


def test_without_matplotlib_it_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match="pictures need matplotlib.*pip install 'torchmdx\\[train\\]'"):
        with style.picture(tmp_path / "p.png", 2, 2):
            pass


def test_a_failed_picture_leaves_no_file(tmp_path):
    with pytest.raises(ZeroDivisionError):
        with style.picture(tmp_path / "p.png", 2, 2):
            raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nightly
def test_no_window_system_is_touched():
    code = "import torchmdx.report.write, sys; sys.exit('matplotlib' in sys.modules or 'ase' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0
