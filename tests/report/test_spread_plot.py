"""The picture of spread against error: what is in it, and when there is none."""

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from torchmdx.report.scales import MILLI_EV
from torchmdx.report.spread_plot import correlations, spread_and_error
from torchmdx.report.uncertainty import SpreadAndError


def filled(spread, error):
    found = SpreadAndError()
    found.add(spread, error)
    return found


def test_points_bins_and_title(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    figures, real = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (figures.append(self), real(self, *a, **k))[1])
    random = np.random.default_rng(0)
    spread = 0.02 * random.lognormal(size=400)
    error = np.abs(spread * random.normal(size=400))
    spread[0] = 0.0  # cannot be drawn on a logarithmic axis
    found = filled(spread, error)
    assert spread_and_error(tmp_path / "s.png", found, MILLI_EV.forces, "the force", title="test")
    (panel,) = figures[0].axes
    points = np.asarray(panel.collections[0].get_offsets())
    expected = 1000 * np.stack([spread, error], 1)[1:]
    np.testing.assert_allclose(np.sort(points, 0), np.sort(expected, 0))
    assert (panel.get_xscale(), panel.get_yscale()) == ("log", "log")
    assert panel.get_xlim() == panel.get_ylim()
    assert panel.get_xlim()[1] >= expected.max()
    assert panel.get_xlabel() == "spread of the force / meV/Å"
    bins = next(line for line in panel.lines if line.get_label() == "RMS error")
    np.testing.assert_allclose(np.stack(bins.get_data(), 1), 1000 * found.binned())
    assert panel.xaxis.get_major_formatter()(20.0) == "20"
    assert panel.get_title(loc="left") == f"test\n{correlations(found)}"
    assert f"correlation {np.corrcoef(spread, error)[0, 1]:.2f}" in correlations(found)


@pytest.mark.parametrize("spread", [np.zeros(50), np.array([0.1, 0.2]), np.zeros(0)], ids=["alike", "two", "none"])
def test_too_little_to_draw(tmp_path, spread):
    found = filled(spread, np.arange(1.0, len(spread) + 1))
    assert not spread_and_error(tmp_path / "s.png", found, MILLI_EV.energy, "energy", title="t")
    assert list(tmp_path.iterdir()) == []


def test_no_correlation_is_said():
    assert correlations(filled(np.full(5, 0.1), np.arange(5.0))) == "no correlation: values do not vary"
