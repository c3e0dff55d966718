"""Examples are short, say what they show, and are listed; `make examples` runs them."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
SCRIPTS = sorted(EXAMPLES.glob("[0-9][0-9]_*.py"))
NOTEBOOK = EXAMPLES / "tour.ipynb"
MOST_LINES = 60
MOST_LINES_OF = {
    "09_add_a_model": 150,
    "15_fine_tune_without_forgetting": 70,
    "17_add_an_engine": 250,
    "19_protein_ligand": 90,
    "24_absolute_binding": 90,
}
RUNNER = ROOT / "tools" / "run_notebook.py"


def test_they_are_numbered_without_gaps():
    assert [int(path.name[:2]) for path in SCRIPTS] == list(range(1, 25))


def test_every_script_is_run_by_make_examples_or_make_demo():
    others = {path.name for path in EXAMPLES.glob("*.py")} - {path.name for path in SCRIPTS}
    assert others <= {"demo.py"}
    makefile = (ROOT / "Makefile").read_text()
    assert "for script in examples/[0-9]*.py" in makefile
    assert "run_notebook.py examples/tour.ipynb" in makefile


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_is_short_and_says_what_it_shows(path):
    text = path.read_text()
    assert len(text.splitlines()) < MOST_LINES_OF.get(path.stem, MOST_LINES)
    tree = ast.parse(text)
    docstring = ast.get_docstring(tree)
    assert docstring
    assert len(docstring.splitlines()[0].split()) >= 6
    assert 'if __name__ == "__main__":' in text  # training starts processes that import it


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_writes_nowhere_but_in_out(path):
    folders = re.findall(r'Path\("([^"]*)"\)', path.read_text())
    assert set(folders) <= {"out"}
    assert "/out/" in (ROOT / ".gitignore").read_text().splitlines()


def test_the_documentation_lists_them_all():
    page = (ROOT / "docs" / "examples.md").read_text()
    listed = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert listed == [*(path.name for path in SCRIPTS), NOTEBOOK.name]
    assert "docs/examples.md" in (ROOT / "README.md").read_text()
    assert "docs/add_a_model.md" in (ROOT / "README.md").read_text()


def test_the_page_about_models_names_every_check_and_every_key():
    from torchmdx.evaluation.conformance.check import SUITE
    from torchmdx.training.config import ModelSection

    page = (ROOT / "docs" / "add_a_model.md").read_text()
    table = page[page.index("| check | tests |") :].split("\n\n")[0]
    named = [name for row in table.splitlines()[2:] for name in row.split("|")[1].strip().split(", ")]
    assert named == [name for name, *_ in SUITE]
    for key in ModelSection.model_fields.keys() - {"name", "settings", "priors"}:
        assert f"`{key}`" in page, key
    lines = len((EXAMPLES / "09_add_a_model.py").read_text().splitlines())
    assert f"{lines} lines" in page.replace("\n", " ")


# -- the notebook ------------------------------------------------------------------------------------------------------


def test_the_notebook_is_small_and_its_code_parses():
    assert NOTEBOOK.stat().st_size < 300_000
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert len(code) >= 4
    for source in code:
        ast.parse(source)
        assert "torchmdx.Calculator" in code[0]


def run_notebook(path, *options):
    command = [sys.executable, str(RUNNER), str(path), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def notebook(path, *sources) -> Path:
    cells = [{"cell_type": "markdown", "metadata": {}, "source": ["# Not code"]}]
    for source in sources:
        lines = source.splitlines(keepends=True)
        cells.append({"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": [], "source": lines})
    path.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}))
    return path


def test_the_runner_runs_cells_in_order_and_stores_what_they_show(tmp_path):
    html = "class Shown:\n    def _repr_html_(self):\n        return '<b>x</b>'\nShown()"
    picture = "import matplotlib.pyplot as plt\nplt.plot([1, x])\nplt.title('t');"
    path = notebook(tmp_path / "n.ipynb", "x = 20\nprint('first')", "x + 1", html, picture)
    before = path.read_text()
    assert run_notebook(path).returncode == 0
    assert path.read_text() == before
    done = run_notebook(path, "--store")
    assert done.returncode == 0, done.stderr
    stored = [cell["outputs"] for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert stored[0] == [{"output_type": "stream", "name": "stdout", "text": ["first\n"]}]
    assert stored[1][0]["data"] == {"text/plain": ["21"]}
    assert stored[2][0]["data"]["text/html"] == ["<b>x</b>"]
    assert stored[3][-1]["data"]["image/png"].startswith("iVBOR")


@pytest.mark.nightly
def test_a_cell_that_raises_ends_the_run_and_is_named(tmp_path):
    path = notebook(tmp_path / "n.ipynb", "x = 1", "x / 0", "print('not reached')")
    done = run_notebook(path, "--store")
    assert done.returncode != 0
    assert "n.ipynb, cell 2" in done.stderr
    assert "ZeroDivisionError" in done.stderr
    assert "not reached" not in path.read_text().replace("print('not reached')", "")
