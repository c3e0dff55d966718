#!/usr/bin/env bash
# Builds the sdist and, from it, the wheel; checks what is in them; installs the wheel in an empty environment and uses it
# there, outside of the checkout. Needs Python 3.11 or newer (PYTHON names one) and the network.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
ROOT=$PWD
if [ -z "${PYTHON:-}" ]; then
    if [ -x .venv/bin/python ]; then PYTHON=$ROOT/.venv/bin/python; else PYTHON=python3; fi
fi

WORK=$(mktemp -d)
trap 'chmod -R u+w "$WORK"; rm -rf "$WORK"' EXIT
trap 'exit 130' INT TERM
# Nothing of the checkout or of the caller's settings may be found by accident.
# Modules are compiled when they are first imported, not when they are installed.
unset PYTHONPATH PYTHONHOME MYPYPATH PYTHONDONTWRITEBYTECODE
export PIP_DISABLE_PIP_VERSION_CHECK=1

say() { printf 'check_wheel: %s\n' "$*"; }
environment() { # environment NAME PACKAGE...: an environment of its own with these packages, in the versions of the checkout
    "$PYTHON" -m venv "$WORK/$1"
    "$WORK/$1/bin/python" -m pip install --quiet --no-compile --constraint "$ROOT/constraints.txt" "${@:2}"
}

# isolated COMMAND...: runs it with an empty PATH and home directory; with SHARED=FOLDER that folder is the cache, and
# cannot be written; where user namespaces allow it, without a network.
# Root may write whatever the mode, so there the folder is mounted again, read-only.
isolated() {
    local place=() variables=(PATH="$WORK/nothing" HOME="$WORK/home")
    if [ -n "${SHARED:-}" ]; then
        variables+=(TORCHMDX_CACHE="$SHARED")
        if [ "$NETWORK" = "without a network" ]; then
            place=(unshare --map-root-user --net --mount "$(command -v bash)" -c
                'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"' "$SHARED")
        else
            chmod -R a-w "$SHARED"
        fi
    fi
    "${place[@]}" "$(command -v env)" -i "${variables[@]}" "$@"
}
NETWORK="without a network"
unshare --map-root-user --net --mount true 2>/dev/null || NETWORK="with the network of this machine"
listed() { # listed FOLDER: paths, sizes and times of everything in it
    find "$1" -printf '%p %s %t\n' | sort
}
demo_is_whole() {
    local file
    for file in alanine_dipeptide.dcd alanine_dipeptide.final.pdb alanine_dipeptide.log energy.png ramachandran.png; do
        test -s "demo/$file" || { say "the demo left no $file" >&2; exit 1; }
    done
}

say "building the sdist, and the wheel from it"
mkdir "$WORK/source" "$WORK/dist" "$WORK/outside"
# A copy: building leaves files behind, and an .egg-info of an earlier build says what goes into an sdist.
tar -cf - --exclude=./.git --exclude=./.venv --exclude=./demo --exclude=./build --exclude=./dist \
    --exclude='*.egg-info' --exclude=__pycache__ . | tar -xf - -C "$WORK/source"
environment builder build
"$WORK/builder/bin/python" -m build --sdist --outdir "$WORK/dist" "$WORK/source" >"$WORK/build.log" 2>&1 ||
    { cat "$WORK/build.log" >&2; exit 1; }
"$WORK/builder/bin/python" -m pip wheel --quiet --no-deps --wheel-dir "$WORK/dist" "$WORK"/dist/*.tar.gz
"$PYTHON" tools/check_archives.py "$WORK/source" "$WORK"/dist/*.tar.gz "$WORK"/dist/*.whl

say "installing the wheel in an empty environment"
environment installed "$(echo "$WORK"/dist/*.whl)[openmm]" mypy
BIN=$WORK/installed/bin
"$BIN/python" -m pip check

cd "$WORK/outside"
say "using it, outside of the checkout"
"$BIN/torchmdx" info
printf '3\n\nO 0 0 0.119\nH 0 0.763 -0.477\nH 0 -0.763 -0.477\n' >water.xyz
"$BIN/torchmdx" energy water.xyz
"$BIN/python" - "$WORK/installed" <<'PYTHON'
import sys

import numpy as np
from ase.build import molecule

import torchmdx

assert torchmdx.__file__.startswith(sys.argv[1]), torchmdx.__file__
atoms = molecule("CH3CH2OH")
atoms.calc = torchmdx.Calculator()
forces = atoms.get_forces()
assert np.isfinite(atoms.get_potential_energy())
assert forces.shape == (9, 3)
assert 0 < abs(forces).max() < 20, forces
assert abs(forces.sum(0)).max() < 1e-4, forces
PYTHON

if compgen -G "$WORK/dist/*-none-any.whl" >/dev/null; then
    say "the wheel holds no libraries: there is no C compiler here"
    "$BIN/torchmdx" demo --seconds 5
    demo_is_whole
else
    say "without a compiler, the libraries of the wheel serve"
    mkdir "$WORK/nothing" "$WORK/home"
    isolated "$BIN/python" - <<'PYTHON'
import shutil

from ase.build import molecule

import torchmdx
from torchmdx.runtime.c_library import c_library_state
from torchmdx.runtime.c_sources import LIBRARIES

assert not any(shutil.which(name) for name in ("cc", "gcc", "clang", "c++", "g++"))
for name in LIBRARIES:
    assert c_library_state(name) == "compiled with the package", (name, c_library_state(name))
atoms = molecule("CH3CH2OH")
atoms.calc = torchmdx.Calculator(device="cpu")
assert abs(atoms.get_forces()).max() > 0
(step,) = atoms.calc.pool.steps
assert step.engine.name == "compiled", step.engine_why
assert step.search.backend == "cell_list", step.search.backend
PYTHON
    test -z "$(find "$WORK/home" -name '*.so')" || { say "something was compiled all the same" >&2; exit 1; }

    say "with what another machine compiled in a shared folder, which cannot be written, ${NETWORK}"
    if command -v c++ >/dev/null; then
        TORCHMDX_CACHE=$WORK/shared "$BIN/python" -c 'from torchmdx.openmm import load_plugin; load_plugin()'
    else
        mkdir -m 755 "$WORK/shared"
    fi
    before=$(listed "$WORK/shared")
    SHARED=$WORK/shared isolated "$BIN/python" - "$(find "$WORK/shared" -name 'openmm-plugin-*.so')" <<'PYTHON'
import os
import sys

folder = os.environ["TORCHMDX_CACHE"]
try:
    open(os.path.join(folder, "new"), "w").close()
except OSError:
    pass
else:
    raise SystemExit(f"{folder} can be written: this check has no meaning")

if sys.argv[1]:
    from torchmdx.openmm import load_plugin

    load_plugin()
PYTHON
    (
        mkdir "$WORK/isolated" && cd "$WORK/isolated"
        SHARED=$WORK/shared isolated "$BIN/torchmdx" demo --seconds 5
        demo_is_whole
    )
    test "$(listed "$WORK/shared")" = "$before" || { say "the shared folder has changed" >&2; exit 1; }
fi

say "types, as a user's checker sees them"
cat >typed.py <<'PYTHON'
from pathlib import Path

from typing_extensions import assert_type

import torchmdx

system = torchmdx.System.create([[0.0, 0.0, 0.0], [0.0, 0.0, 0.74]], [1, 1])
potential = torchmdx.load()
assert_type(potential, torchmdx.Potential | torchmdx.Ensemble)
assert_type(torchmdx.evaluate(potential, system), torchmdx.Result)
assert_type(torchmdx.Calculator(charge=1.0).potential, torchmdx.Potential | torchmdx.Ensemble)
torchmdx.save(potential, Path("copy.safetensors"))
print(float(torchmdx.evaluate(potential, system).energy))
PYTHON
"$BIN/mypy" --strict typed.py
"$BIN/python" typed.py
sed 's/charge=1.0/charge="one"/' typed.py >wrong.py
if "$BIN/mypy" --strict wrong.py >wrong.txt; then
    say "mypy finds nothing wrong with charge=\"one\": the types of the package are not seen" >&2
    exit 1
fi
grep -q 'Argument "charge" to "Calculator" has incompatible type' wrong.txt || { cat wrong.txt >&2; exit 1; }
say "all is well"
