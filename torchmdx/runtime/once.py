"""Results that are computed once, also where several threads ask for them."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

log = logging.getLogger(__name__)

Given = ParamSpec("Given")
Result = TypeVar("Result")


def once(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """A decorator: as functools.cache, but who asks for a result that another thread is computing waits for it.

    Errors are not kept: the next call computes again. Arguments must be hashable.
    """
    results: dict[object, Result] = {}
    locks: dict[object, threading.Lock] = {}

    @functools.wraps(function)
    def call(*args: Given.args, **options: Given.kwargs) -> Result:
        key = args, tuple(sorted(options.items()))
        if key not in results:
            with locks.setdefault(key, threading.Lock()):
                if key not in results:
                    results[key] = function(*args, **options)
        return results[key]

    return call


def ahead(name: str, function: Callable[[], object]) -> None:
    """Starts a thread that computes what `once` keeps. Its errors are left to who asks for the result."""

    def work() -> None:
        try:
            function()
        except Exception as error:
            log.debug("%s failed ahead of its use: %s", name, error)

    try:
        threading.Thread(target=work, name=f"torchmdx-{name}").start()
    except RuntimeError as error:  # no more threads
        log.debug("%s is not made ahead of its use: %s", name, error)
