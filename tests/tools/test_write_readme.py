"""tools/write_readme.py: README.md shows the records, in at most 600 words."""

import re
import sys

import pytest
from documents.blocks import ROOT

sys.path += [str(ROOT / name) for name in ("tools", "docs")]

import recorded
import write_readme


def test_the_readme_and_the_plot_are_those_of_the_records():
    names = [path.name for path in write_readme.outdated()]
    assert not names, f"tools/write_readme.py writes {', '.join(names)}"


def test_potentials_of_aceff_are_as_many_times_as_fast_as_in_torchmd_net(readme):
    rows = [row for row in recorded.record("released")["rows"] if row["potential"].startswith("aceff")]
    found = [row["speedup"] for row in rows if "speedup" in row]
    text = readme.read_text()
    wanted = f"{recorded.shown(min(found), 2)} to {recorded.shown(max(found), 2)} times as fast as in torchmd-net"
    assert wanted in text
    readme.write_text(text.replace(wanted, wanted.replace(" to ", "0 to ")))
    assert wanted in write_readme.outdated()[readme]


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().split()) <= 600


@pytest.fixture
def readme(tmp_path, monkeypatch):
    """A copy of README.md with another time in its table, and an empty plot, in a folder of their own."""
    text = write_readme.README.read_text(encoding="utf-8")
    for name, path in (("README", tmp_path / "README.md"), ("ROOT", tmp_path), ("IMAGES", tmp_path)):
        monkeypatch.setattr(write_readme, name, path)
    for name in write_readme.PLOTS:
        (tmp_path / name).write_text("")
    (tmp_path / "README.md").write_text(re.sub(r"\|DHFR\|2,489\|[\d.]+", "|DHFR|2,489|9.9", text))
    return tmp_path / "README.md"


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["write_readme.py", *arguments])
    return write_readme.main()


def test_what_is_out_of_date_is_found_and_written(readme, monkeypatch, capsys):
    before = readme.read_text()
    assert run(monkeypatch, "--check") == 1
    names = (
        "README.md",
        "released.svg",
        "speed.svg",
        "multiple_steps.svg",
        "multiple_steps_sampled.svg",
        "learning.svg",
        "learning_pool.svg",
    )
    assert capsys.readouterr().out == "".join(f"{name} is out of date\n" for name in names)
    assert readme.read_text() == before
    assert run(monkeypatch) == 0
    assert readme.read_text() == (ROOT / "README.md").read_text()
    assert run(monkeypatch, "--check") == 0


def test_a_readme_without_a_place_for_the_table(readme, monkeypatch):
    readme.write_text("# torchmdx\n")
    with pytest.raises(ValueError, match="README.md must have one place for the table, got 0"):
        run(monkeypatch)


def test_a_readme_without_a_place_for_the_ratio(readme, monkeypatch):
    readme.write_text(readme.read_text().replace("times as fast as in torchmd-net", "times as fast"))
    with pytest.raises(ValueError, match="README.md must have one place for the ratio to torchmd-net, got 0"):
        run(monkeypatch)
