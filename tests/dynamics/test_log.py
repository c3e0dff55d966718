import numpy as np
import pytest

from torchmdx.dynamics.log import Log, LogRow, columns_of, read_log

PLAIN, BOXED = (columns_of(periodic=periodic, ensemble=False) for periodic in (False, True))


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
