"""The table of what checks have found."""

import numpy as np
import wrong_labels

from torchmdx.datasets.findings import Finding, found, table


def test_frames_are_listed_by_file_and_extreme_findings_first(tmp_path):
    store = wrong_labels.store(tmp_path / "s", 30)
    lines = table(
        [Finding("forces", "are large", (3,)), Finding("sign", "is wrong", (), True), *found("x", "y", np.arange(20))],
        store,
    )
    assert lines[0].split() == ["extreme", "sign", "all", "frames", "is", "wrong"]
    assert lines[1].split() == ["warning", "forces", "1", "frame", "are", "large"]
    assert lines[2].strip() == "made.xyz, frame 3"
    assert lines[4].strip() == "made.xyz, frames 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11"
    assert lines[5].strip() == "..."
    assert found("x", "y", np.zeros(0, np.int64)) == []
