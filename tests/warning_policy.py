"""Which warnings fail a test: those of torchmdx (pyproject.toml), and, by what is here, of its tests and examples."""

import re
from pathlib import Path

TESTS = Path(__file__).parent


def own_modules() -> str:
    """A regular expression of the names that modules outside of the package have.

    Tests and examples by pattern, what tests import by name. `__main__` is a script, or a block of a document.
    """
    helpers = [path for path in TESTS.rglob("*.py") if not path.name.startswith("test_")]
    names = {path.stem for path in helpers} | {f"{path.parent.name}.{path.stem}" for path in helpers}
    return rf"(__main__|test_\w+|\d\d_\w+|{'|'.join(sorted(map(re.escape, names)))})\Z"
