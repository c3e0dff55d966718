"""A lock for objects whose state only one thread at a time may use."""

from __future__ import annotations

import functools
import os
import weakref
from _thread import RLock
from collections.abc import Callable
from typing import Any, TypeVar

Of = TypeVar("Of", bound=type)


class ThreadLock(RLock):  # type: ignore[misc]  # it can be subclassed, whatever typeshed says
    """A reentrant lock, used with `with`. A copy or a pickle of it is a new lock.

    Acquired and released by the C code of its base class: Python delivers a Ctrl-C only between instructions, and would
    also between an `acquire` in a method here and the return to `with`, which then never releases the lock.

    In a forked process it is free, unless the forking thread holds it: other threads do not exist there.
    """

    def __init__(self) -> None:
        super().__init__()
        _locks.add(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> ThreadLock:
        return ThreadLock()

    def __reduce__(self) -> tuple[type[ThreadLock], tuple[()]]:
        return ThreadLock, ()


_locks: weakref.WeakSet[ThreadLock] = weakref.WeakSet()


def _free_those_of_other_threads() -> None:
    for lock in list(_locks):
        if not lock._is_owned():  # type: ignore[attr-defined]
            lock._at_fork_reinit()  # type: ignore[attr-defined]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_those_of_other_threads)


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
