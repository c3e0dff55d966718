"""Leaving torch.inference_mode for work that needs gradients.

Under torch.inference_mode no operation is recorded for gradients, and tensors created there can never be
differentiated. Weights, buffers and tables must therefore be created outside it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

Given = ParamSpec("Given")
Result = TypeVar("Result")


def outside_inference_mode(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """A decorator: the function runs outside torch.inference_mode."""

    @functools.wraps(function)
    def run(*args: Given.args, **options: Given.kwargs) -> Result:
        if not torch.is_inference_mode_enabled():  # the usual case, kept fast for steps of 100 µs
            return function(*args, **options)
        with torch.inference_mode(False):
            return function(*args, **options)

    return run
