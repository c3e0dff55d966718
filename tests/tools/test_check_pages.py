"""tools/check_pages.py, which opens interactive pages in a browser: on pages that are right and on broken ones."""

import subprocess
import sys
from pathlib import Path

import ase.io
import pytest
from ase.build import molecule

from torchmdx.commands import cli

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import browser  # noqa: E402
import check_pages  # noqa: E402


@pytest.fixture
def page(tmp_path):
    pytest.importorskip("plotly")
    ase.io.write(tmp_path / "water.xyz", [molecule("H2O"), molecule("H2O")])
    assert cli.main(["view", str(tmp_path / "water.xyz")]) == 0
    return tmp_path / "water.html"


def test_without_a_browser_the_step_says_so_and_succeeds(monkeypatch, capsys):
    monkeypatch.setenv("CHROMIUM", "/nowhere/chromium")
    assert check_pages.main([]) == 0
    assert "there is no chromium here (apt install chromium), so NO PAGE IS CHECKED" in capsys.readouterr().out


def test_other_files_are_refused(tmp_path):
    (tmp_path / "other.html").write_text("<html></html>")
    with pytest.raises(ValueError, match=r"other\.html' is not an interactive page of torchmdx"):
        check_pages.data_of(tmp_path / "other.html")


def run(page, folder):
    if browser.find_chromium() is None:
        pytest.skip("needs chromium")
    words = [sys.executable, ROOT / "tools" / "check_pages.py", page, "--output", folder]
    return subprocess.run(words, capture_output=True, text=True, timeout=300)


@pytest.mark.nightly
def test_a_page_passes_with_screenshots(page, tmp_path):
    done = run(page, tmp_path / "shots")
    assert done.returncode == 0, done.stderr
    assert '"frames": "2", "frame": "0", "atoms": "3", "bonds": "2"' in done.stdout
    for name in ("water.png", "water-last.png"):
        assert (tmp_path / "shots" / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("replaced", "by", "problem"),
    [
        ("async function start() {", 'async function start() { console.error("a complaint");', "a complaint"),
        ("async function start() {", "async function start() { nothing();", "nothing is not defined"),
        ("this.slider.value = frame;", "this.slider.value = frame; throw Error('lost');", "lost"),
        ("frames: this.frames.number, frame,", "frames: 1, frame,", "frames must be 2, got 1"),
        ("async function start() {", 'async function start() { fetch("https://example.org/a");', "example.org"),
    ],
)
def test_a_broken_page_is_found(page, tmp_path, monkeypatch, replaced, by, problem):
    text = page.read_text()
    assert text.count(replaced) == 1
    page.write_text(text.replace(replaced, by))
    if browser.find_chromium() is None:
        pytest.skip("needs chromium")
    monkeypatch.setattr(check_pages, "SECONDS", 20.0)
    with browser.Browser(browser.find_chromium()) as opened:
        found = check_pages.check(opened, page, tmp_path)
    assert any(problem in line for line in found), found
