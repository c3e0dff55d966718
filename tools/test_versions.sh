#!/usr/bin/env bash
# Runs a quick part of the tests with other versions of the dependencies than constraints.txt pins:
#     tools/test_versions.sh newest    the newest that pip finds
#     tools/test_versions.sh oldest    the oldest that pyproject.toml allows
# Installs torchmdx (editable) with its extras openmm, train and label, and pytest, in build/newest or build/oldest, which
# later runs update. PYTHON names the interpreter.
#
# torch is the version of constraints.txt in both: PyPI's builds of torch for Linux bring CUDA, several GB, so the newest
# and the oldest are not installed unless TORCH_REQUIREMENT names them ("torch", "torch==2.9.0") beside an index of CPU
# builds, as in PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu.
# The extra dispersion is left out (torch-dftd needs pymatgen, which is large), and triton, whose version torch decides.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
WHICH=${1:-}
case $WHICH in newest | oldest) ;; *) printf 'usage: %s newest|oldest\n' "$0" >&2; exit 2 ;; esac
if [ -z "${PYTHON:-}" ]; then
    if [ -x .venv/bin/python ]; then PYTHON=.venv/bin/python; else PYTHON=python3; fi
fi
EXTRAS=(openmm train label)
TORCH=${TORCH_REQUIREMENT:-$(grep '^torch==' constraints.txt)}
VENV=build/$WHICH
BIN=$VENV/bin
# Modules are compiled when they are first imported, not when they are installed.
unset PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE
export PIP_DISABLE_PIP_VERSION_CHECK=1

say() { printf '%s versions: %s\n' "$WHICH" "$*"; }

"$BIN/python" -c '' 2>/dev/null || "$PYTHON" -m venv --clear "$VENV"
mapfile -t TOOLS < <(grep -E '^(pytest|hypothesis)==' constraints.txt)
if [ "$WHICH" = oldest ]; then
    "$BIN/python" tools/oldest_requirements.py "${EXTRAS[@]}" >"$VENV/constraints.txt"
else
    printf '%s\n' "$TORCH" >"$VENV/constraints.txt"
fi
say "installing torchmdx with ${EXTRAS[*]}, constrained by $(tr '\n' ' ' <"$VENV/constraints.txt")in $VENV"
"$BIN/python" -m pip --require-virtualenv install --quiet --no-compile --prefer-binary --upgrade \
    --upgrade-strategy eager --constraint "$VENV/constraints.txt" \
    --editable ".[$(IFS=,; echo "${EXTRAS[*]}")]" "$TORCH" "${TOOLS[@]}"
"$BIN/python" -m pip list --format freeze | grep -v '^-e' | tr '\n' ' '
printf '\n'
say "running a quick part of the tests"
# Every package that torchmdx calls is called: ASE, NumPy, torch, vesin, safetensors, OpenMM, pydantic, h5py, matplotlib,
# TensorBoard, tblite and RDKit.
OMP_NUM_THREADS=1 "$BIN/python" -m pytest -q -p no:cacheprovider \
    -m "not gpu and not slow and not nightly" \
    tests/test_warning_policy.py tests/structures/test_system.py tests/structures/test_cell.py tests/ase/test_ase_calculator.py \
    tests/evaluation/test_evaluation_derivatives.py tests/checkpoints/test_save_load.py tests/neighbors/test_edges.py \
    tests/neighbors/test_neighbors_choose.py tests/openmm/test_add.py tests/commands/md_openmm/test_structure.py tests/datasets/test_*.py \
    tests/commands/test_data.py tests/training/test_config.py tests/training/test_logs.py \
    tests/report/test_plots.py tests/datasets/labelling/test_calculators.py tests/datasets/labelling/test_sources.py
