"""Checks that the C libraries of an installed wheel load and run without torch."""

import ctypes
import sys
import sysconfig
from pathlib import Path

NAMES = {
    "tensornet": ("engines/cpu", "tensornet_instructions"),
    "tensornet_double": ("engines/cpu", "tensornet_instructions"),
    "kernels": ("engines/cpu", "kernels_instructions"),
    "cell_list": ("neighbors/backends", "cell_list_search"),
}


def main() -> int:
    """Loads each library; returns the exit status."""
    package = Path(sysconfig.get_paths()["purelib"]) / "torchmdx"
    if not package.exists():
        package = Path(sysconfig.get_paths()["platlib"]) / "torchmdx"
    for name, (folder, function) in NAMES.items():
        found = list((package / folder).glob(f"{name}-*.so"))
        if len(found) != 1:
            print(f"check_library: {package / folder} must hold one library {name}, got {len(found)}", file=sys.stderr)
            return 1
        getattr(ctypes.CDLL(str(found[0])), function)
        print(f"{found[0].name}: loads")
    return 0


if __name__ == "__main__":
    sys.exit(main())
