"""Packages that only some functions need, and how to install them."""

from __future__ import annotations

import importlib.util


def require_package(module: str, needed: str, extra: str, name: str = "") -> None:
    """Raises ImportError, with the command that installs it, if a package is not there.

    Args:
        module: The module that is imported.
        needed: What needs it, with its verb, such as "phonons need".
        extra: The extra of torchmdx that has it.
        name: As people write it; by default that of the module.
    """
    if importlib.util.find_spec(module) is None:
        name = name or module
        raise ImportError(f"{needed} {name}, which is not installed: pip install 'torchmdx[{extra}]'")
