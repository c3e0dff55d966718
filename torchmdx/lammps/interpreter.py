"""What LAMMPS's own program needs to know of an interpreter to start another like it in its process.

`python -m torchmdx.lammps.interpreter` prints three lines: the shared library, the prefix of the standard library, and
code to be run first. torchmdx_python.h reads them.
"""

from __future__ import annotations

import os
import sys
import sysconfig


def library() -> str:
    """The path of Python's shared library, or its name where it is not with this interpreter."""
    name = sysconfig.get_config_var("INSTSONAME") or ""
    folders = (sysconfig.get_config_var(key) for key in ("LIBDIR", "LIBPL"))
    there = (os.path.join(folder, name) for folder in folders if folder)
    return next((path for path in there if os.path.exists(path)), name)


def code() -> str:
    """Makes an interpreter without an environment of its own use this one's packages."""
    packages = [path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")]
    return (
        f"import site, sys; sys.executable, sys.prefix = {sys.executable!r}, {sys.prefix!r}; "
        f"sys.path[:] = {[path for path in sys.path if path]!r}; [site.addsitedir(path) for path in {packages!r}]"
    )


if __name__ == "__main__":
    print(library(), sys.base_prefix, code(), sep="\n")
