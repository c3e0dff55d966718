"""Public names of a package, each imported when it is first used."""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def public_names(
    package: str, modules: dict[str, str]
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """`__all__`, `__getattr__` and `__dir__` of a package's `__init__`.

    Type checkers cannot follow this, so the same names are imported under TYPE_CHECKING next to it.

    Args:
        modules: The module below `package` that defines each name; one that ends with the name defines nothing else,
            and is the public name itself. No other module may be called like a name: importing it would replace the
            name.
    """

    def get(name: str) -> Any:
        if name in modules:
            module = import_module(f"{package}.{modules[name]}")
            value = module if modules[name] == name else getattr(module, name)
        elif not name.startswith("_") and find_spec(f"{package}.{name}"):
            return import_module(f"{package}.{name}")
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(import_module(package), name, value)
        return value

    names = sorted(modules)
    return names, get, names.copy
