"""A lock for objects whose state only one thread at a time may use."""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

Of = TypeVar("Of", bound=type)


class ThreadLock:
    """A reentrant lock, used with `with`. A copy or a pickle of it is a new lock.

    In a forked process it is free: the thread that held it does not exist there.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    def __deepcopy__(self, memo: dict[int, Any]) -> ThreadLock:
        return ThreadLock()

    def __reduce__(self) -> tuple[type[ThreadLock], tuple[()]]:
        return ThreadLock, ()


_locks: weakref.WeakSet[ThreadLock] = weakref.WeakSet()


def _free_all() -> None:
    for lock in list(_locks):
        lock._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_all)


def one_thread_at_a_time(*names: str) -> Callable[[Of], Of]:
    """A class decorator: these methods run while the object's `lock`, a ThreadLock, is held."""

    def locked(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def run(self: Any, *args: Any, **options: Any) -> Any:
            with self.lock:
                return method(self, *args, **options)

        return run

    def changed(kind: Of) -> Of:
        for name in names:
            setattr(kind, name, locked(getattr(kind, name)))
        return kind

    return changed
