"""Compiles the C libraries of the package into a wheel, if there is a compiler; everything else is in pyproject.toml.

Without a compiler, with TORCHMDX_PURE=1, and in an editable install, nothing is compiled: the package then compiles on
first use. A wheel with libraries is for one platform, and for any Python.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent


def sources() -> ModuleType:
    """torchmdx/runtime/c_sources.py, without importing torchmdx, which needs torch."""
    spec = importlib.util.spec_from_file_location("c_sources", ROOT / "torchmdx" / "runtime" / "c_sources.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compiler() -> str | None:
    """The C compiler to use; None without one."""
    if os.environ.get("TORCHMDX_PURE") == "1":
        return None
    found = (shutil.which(name) for name in (os.environ.get("CC") or "cc", "gcc", "clang"))
    return next((path for path in found if path), None)


class BuildWithLibraries(build_py):
    """Compiles each library beside its source, in the folder of the build."""

    def run(self) -> None:
        super().run()
        found = compiler()
        if found is None or self.editable_mode:
            return
        described, package = sources(), ROOT / "torchmdx"
        for name, (source, *_) in described.LIBRARIES.items():
            made = Path(self.build_lib) / "torchmdx" / described.packaged_file(package, name).relative_to(package)
            made.parent.mkdir(parents=True, exist_ok=True)
            # On macOS cibuildwheel names the processor here.
            flags = (*described.FLAGS, *os.environ.get("ARCHFLAGS", "").split())
            command = [found, *flags, str(package / source), "-o", str(made), "-lm"]
            if subprocess.run(command, check=False).returncode:
                print(f"{source} could not be compiled: torchmdx compiles it on first use", file=sys.stderr)


class PlatformWheel(bdist_wheel):
    """A wheel with libraries, which no Python ABI matters to."""

    def get_tag(self) -> tuple[str, str, str]:
        *_, platform = super().get_tag()
        return "py3", "none", platform


class WithLibraries(Distribution):
    """A distribution for one platform if libraries are compiled."""

    def has_ext_modules(self) -> bool:
        return compiler() is not None


setup(cmdclass={"build_py": BuildWithLibraries, "bdist_wheel": PlatformWheel}, distclass=WithLibraries)
