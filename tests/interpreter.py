"""Tests of Triton kernels: on a GPU, or on the CPU under Triton's interpreter.

Triton reads TRITON_INTERPRET when it is imported, so these tests run in a pytest process of their own:
`make interpreter`, or TRITON_INTERPRET=1 python -m pytest -m interpreter.
"""

import os

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"

# The kernels run on the GPU if the machine has one, otherwise under the interpreter.
needs_kernels = pytest.mark.interpreter if DEVICE == "cpu" else pytest.mark.gpu
# What `-m interpreter` collects, to save the imports of the other folders.
FOLDERS = ("dynamics", "engines", "neighbors", "step", "training")
