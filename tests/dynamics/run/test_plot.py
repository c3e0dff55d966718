"""The plot of a log."""

import numpy as np
import pytest

from torchmdx.dynamics.log import Log, LogRow, columns_of
from torchmdx.dynamics.run.plot import plot_log

PLAIN, BOXED = (columns_of(periodic=periodic, ensemble=False) for periodic in (False, True))


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
