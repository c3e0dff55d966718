"""Work that needs gradients, in whatever mode the caller is.

Under torch.inference_mode nothing depends on positions, as far as torch knows, and what is made there can never be
differentiated: weights, buffers and tables must be made outside of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

Given = ParamSpec("Given")
Result = TypeVar("Result")


def outside_inference_mode(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """The same function, which leaves torch.inference_mode for as long as it runs."""

    @functools.wraps(function)
    def run(*args: Given.args, **options: Given.kwargs) -> Result:
        if not torch.is_inference_mode_enabled():  # the rule: a step of 100 µs has no time for more than this
            return function(*args, **options)
        with torch.inference_mode(False):
            return function(*args, **options)

    return run
