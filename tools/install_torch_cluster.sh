#!/usr/bin/env bash
# Compiles torch-cluster of the version of constraints.txt against the torch of .venv, and installs it there: only its
# radius search, which is all that torchmdx calls. The whole of it takes ten minutes, this half a minute.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHON=${PYTHON_OF_VENV:-$PWD/.venv/bin/python}
VERSION=$(sed -n 's/^torch-cluster==//p' constraints.txt)
if "$PYTHON" -c "import sys, torch_cluster; sys.exit(torch_cluster.__version__ != '$VERSION')" 2>/dev/null; then
    exit 0
fi
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1
"$PYTHON" -m pip install --quiet --constraint constraints.txt wheel
"$PYTHON" -m pip download --quiet --no-deps --no-binary :all: --no-build-isolation --dest "$WORK" "torch-cluster==$VERSION"
tar -xzf "$WORK"/*.tar.gz -C "$WORK" --strip-components=1
# One source without optimization, and without the headers of torch's C++ interface: torch's headers take most of the time.
find "$WORK/csrc" -maxdepth 1 -name '*.cpp' ! -name radius.cpp -delete
mv "$WORK/csrc/cpu/radius_cpu.cpp" "$WORK/csrc/cpu/radius_cpu.inc"
echo '#include "cpu/radius_cpu.inc"' >>"$WORK/csrc/radius.cpp"
sed -i 's|torch/torch\.h|torch/script.h|' "$WORK/csrc/extensions.h"
sed -i "s/'-O2'/'-O0'/" "$WORK/setup.py"
"$PYTHON" - "$WORK/torch_cluster/__init__.py" <<'END'
import re, sys
from pathlib import Path

file = Path(sys.argv[1])
text = file.read_text()
text, lists = re.subn(r"for library in \[.*?\]:", "for library in ['_radius']:", text, flags=re.DOTALL)
text, checks = re.subn(r"^cuda_version = .*?(?=^from )", "", text, flags=re.DOTALL | re.MULTILINE)
text = re.sub(r"^from \.(?!radius)\w+ import .*\n", "", text, flags=re.MULTILINE)
text, names = re.subn(r"__all__ = \[.*?\]", "__all__ = ['radius', 'radius_graph', '__version__']", text, flags=re.DOTALL)
assert (lists, checks, names) == (1, 1, 1), "torch_cluster/__init__.py is not as expected"
file.write_text(text)
END
"$PYTHON" -m pip install --quiet --constraint constraints.txt --no-build-isolation "$WORK"
