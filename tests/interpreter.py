"""Tests of Triton kernels: on a GPU, or on the CPU under Triton's interpreter.

Triton reads TRITON_INTERPRET when it is imported, so these tests run in a pytest process of their own:
`make interpreter`, or TRITON_INTERPRET=1 python -m pytest -m interpreter.
"""

import functools
import os
import re
from pathlib import Path

import pytest
import torch
from warning_policy import TESTS

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"

# The kernels run on the GPU if the machine has one, otherwise under the interpreter.
needs_kernels = pytest.mark.interpreter if DEVICE == "cpu" else pytest.mark.gpu


@functools.cache
def collected() -> set[Path]:
    """What `-m interpreter` collects, to save the imports of others: files that name the marker, and their folders.

    A file names it too by importing a helper, a module that holds no tests, which does.
    """
    texts = {path: path.read_text() for path in TESTS.rglob("*.py") if path.name != "conftest.py"}
    tests = {path for path in texts if path.name.startswith("test_")}
    helpers = "|".join(path.stem for path in texts.keys() - tests if "interpreter" in texts[path])
    named = re.compile(rf"mark\.interpreter|^ *(from|import) ({helpers})\b", re.MULTILINE)
    files = {path for path in tests if named.search(texts[path])}
    return files | {folder for path in files for folder in path.parents}
