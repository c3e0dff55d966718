"""Public names of a package, each imported when it is first used."""

import re
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

# A line under `if TYPE_CHECKING:`, with the module and the name.
IMPORT = re.compile(r"^    from ([\w.]+) import (\w+) as \2$", re.MULTILINE)


def public_names(package: str) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """`__all__`, `__getattr__` and `__dir__` of a package's `__init__`, from its imports under TYPE_CHECKING.

    Type checkers follow these imports; here their text says where each name is defined. So the package needs its
    sources, and each import a line of its own. A module that is a public name is imported from the package itself. No
    other module may be called like a public name: importing it would replace the name.
    """
    spec = find_spec(package)
    assert spec is not None
    source: bytes = spec.loader.get_data(spec.origin)  # type: ignore[union-attr]
    modules = {name: module for module, name in IMPORT.findall(source.decode())}

    def get(name: str) -> Any:
        if modules.get(name, package) != package:
            value = getattr(import_module(modules[name]), name)
        elif name in modules or (not name.startswith("_") and find_spec(f"{package}.{name}")):
            value = import_module(f"{package}.{name}")
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(import_module(package), name, value)
        return value

    names = sorted(modules)
    return names, get, names.copy
