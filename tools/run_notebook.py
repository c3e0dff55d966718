"""Runs the code cells of a notebook in order, without Jupyter; with --store saves their output in it.

    python tools/run_notebook.py examples/tour.ipynb [--store]

Understands what examples/tour.ipynb needs: text that is printed, the value of a cell's last line (its `_repr_html_` or
its repr) and matplotlib's figures. An exception in a cell ends the run with a traceback that names the cell.
"""

import argparse
import ast
import base64
import contextlib
import io
import json
import os
from pathlib import Path
from typing import Any

os.environ["MPLBACKEND"] = "Agg"
MOST_HTML = 1_000_000  # characters: larger outputs are not stored


def run_cell(source: str, name: str, namespace: dict[str, Any]) -> tuple[str, Any]:
    """(printed text, value of the last line or None)."""
    tree = ast.parse(source, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, name, "exec"), namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval"), namespace)
    return printed.getvalue(), value


def figures() -> list[str]:
    """The open figures as PNG in base64; closes them."""
    import matplotlib.pyplot as plt

    found = []
    for number in plt.get_fignums():
        file = io.BytesIO()
        plt.figure(number).savefig(file, format="png", dpi=60, bbox_inches="tight")
        found.append(base64.b64encode(file.getvalue()).decode())
    plt.close("all")
    return found


def outputs(printed: str, value: Any, pictures: list[str], number: int) -> list[dict[str, Any]]:
    """The outputs of a cell, as stored in a notebook."""
    found: list[dict[str, Any]] = []
    if printed:
        found.append({"output_type": "stream", "name": "stdout", "text": printed.splitlines(keepends=True)})
    if value is not None:
        data = {"text/plain": [repr(value)]}
        page = value._repr_html_() if hasattr(value, "_repr_html_") else ""
        if 0 < len(page) < MOST_HTML:
            data["text/html"] = page.splitlines(keepends=True)
        found.append({"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": data})
    for picture in pictures:
        data = {"image/png": picture, "text/plain": ["<Figure>"]}
        found.append({"output_type": "display_data", "metadata": {}, "data": data})
    return found


def main() -> None:
    """Runs the notebook of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--store", action="store_true", help="write the outputs into the notebook")
    options = parser.parse_args()
    notebook = json.loads(options.notebook.read_text())
    namespace: dict[str, Any] = {"__name__": "__main__"}
    number = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        number += 1
        printed, value = run_cell("".join(cell["source"]), f"{options.notebook.name}, cell {number}", namespace)
        pictures = figures()
        print(f"[{number}] {printed.strip()}" + f" ({len(pictures)} pictures)" * bool(pictures))
        cell["execution_count"], cell["outputs"] = number, outputs(printed, value, pictures, number)
    if options.store:
        options.notebook.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
