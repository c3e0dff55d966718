"""The plugin's GPU kernels, compiled for the CPU: what they read, write and leave alone. And the GPU part compiles."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

openmm = pytest.importorskip("openmm", reason="needs OpenMM")

from torchmdx.openmm_force.native import build  # noqa: E402

COMPILER = shutil.which("g++")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++")

# What OpenMM's dialect stands for, with one thread that does all the work.
DIALECT = """
#define KERNEL extern "C"
#define GLOBAL
#define RESTRICT
#define GLOBAL_ID 0
#define GLOBAL_SIZE 1
typedef long long mm_long;
typedef unsigned long long mm_ulong;
extern "C" { int num_atomic; }
#define ATOMIC_ADD(dest, value) (void) (num_atomic++, __atomic_fetch_add(dest, value, __ATOMIC_SEQ_CST))
struct int4 { int x, y, z, w; };
struct real4 { REAL x, y, z, w; };
"""
# "mixed" has the float32 remainder of each coordinate in an array of its own.
PRECISIONS = {"single": np.float32, "mixed": np.float32, "double": np.float64}
NUM, PADDED = 7, 32
ORDER = np.array([3, 0, 6, 1, 5, 2, 4])  # which particle is in each place of OpenMM's buffers
CHOSEN = np.array([5, 0, 4])  # particles of the force, in its order
BOX = np.array([[2.1, 0.0, 0.0], [0.3, 2.2, 0.0], [-0.4, 0.5, 2.6]])
LENGTH, FACTOR = 10.0, 0.25 * 2.0**32


def compiled(folder: Path, precision: str, offsets: bool) -> ctypes.CDLL:
    text = (build.HERE / "cuda_kernel.cpp").read_text()
    source = text.split('R"(', 1)[1].split(')";', 1)[0]
    (folder / "kernels.cpp").write_text(DIALECT + source)
    real = "double" if precision == "double" else "float"
    defines = [f"-DREAL={real}", "-DOVERFLOW_FLAG=1", "-DNOT_FINITE_FLAG=2", "-DFAR_FLAG=4", "-DUNCERTAIN_FLAG=5"]
    defines += ["-DMIXED"] * (precision == "mixed") + ["-DOFFSETS"] * offsets
    made = folder / f"kernels-{precision}-{offsets}.so"
    command = [COMPILER, "-Wall", "-Werror", "-ffp-contract=off", "-shared", "-fPIC", *defines]
    subprocess.run([*command, folder / "kernels.cpp", "-o", made], check=True, capture_output=True)
    return ctypes.CDLL(str(made))


def address(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def places() -> tuple[np.ndarray, np.ndarray]:
    place = np.full(NUM, -1, dtype=np.int32)
    place[CHOSEN] = np.arange(len(CHOSEN))
    return np.pad(ORDER, (0, PADDED - NUM)).astype(np.int32), place


@pytest.mark.parametrize("offsets", [False, True])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_positions_are_gathered(tmp_path, precision, offsets):
    rng, dtype = np.random.default_rng(1), PRECISIONS[precision]
    wanted = rng.normal(size=(NUM, 3)) * 20
    moved = rng.integers(-3, 4, size=(NUM, 3)) * offsets
    held = (wanted + moved @ BOX)[ORDER]
    posq, rest = np.zeros((PADDED, 4), dtype), np.zeros((PADDED, 4), np.float32)
    posq[:NUM, :3], posq[:NUM, 3] = held, 0.7  # the fourth number is a charge
    rest[:NUM, :3] = held - posq[:NUM, :3].astype(float)
    whole = np.zeros((PADDED, 4), np.int32)
    whole[:NUM, :3], whole[:NUM, 3] = moved[ORDER], 9
    index, place = places()
    found, cell = np.full((len(CHOSEN) + 1, 3), 77.0), np.zeros((3, 3))
    arguments = [address(posq), *[address(rest)] * (precision == "mixed"), *[address(whole)] * offsets]
    arguments += [address(index), address(place), address(found), address(cell), NUM]
    arguments += [ctypes.c_double(x) for x in (LENGTH, *BOX.ravel())]
    compiled(tmp_path, precision, offsets).gatherPositions(*arguments)
    tolerance = 1e-5 if precision == "single" else 1e-11
    np.testing.assert_allclose(found[:-1], LENGTH * wanted[CHOSEN], atol=40 * LENGTH * tolerance)
    np.testing.assert_array_equal(found[-1], 77.0)
    np.testing.assert_array_equal(cell, LENGTH * BOX)


def added(folder: Path, forces: np.ndarray, flag: int | None) -> tuple[np.ndarray, np.ndarray]:
    """OpenMM's buffer before and after, [3, PADDED]."""
    before = np.random.default_rng(2).integers(-(2**40), 2**40, size=(3, PADDED))
    after, flags = before.copy(), np.zeros(8, np.int64)
    flags[[0, 3]] = 12, 5  # edges needed and the first bad atom, which say nothing by themselves
    if flag is not None:
        flags[flag] = 1
    index, place = places()
    pointers = [address(x) for x in (forces, flags, after, index, place)]
    library = compiled(folder, "single", False)
    library.addForces(*pointers, NUM, PADDED, ctypes.c_double(FACTOR))
    # Kernels on OpenMM's other streams may add to the same buffer meanwhile.
    changed = int((before != after).sum())
    assert ctypes.c_int.in_dll(library, "num_atomic").value == changed
    return before, after


def test_forces_are_added_in_fixed_point_where_the_atoms_are(tmp_path):
    forces = np.random.default_rng(3).normal(size=(len(CHOSEN), 3)) * 50
    before, after = added(tmp_path, forces, None)
    wanted = before.copy()
    for k, particle in enumerate(CHOSEN):
        wanted[:, int(np.flatnonzero(particle == ORDER)[0])] += np.trunc(forces[k] * FACTOR).astype(np.int64)
    np.testing.assert_array_equal(after, wanted)


@pytest.mark.parametrize("flag", [1, 2, 4, 5])
def test_forces_of_a_failed_evaluation_are_not_added(tmp_path, flag):
    before, after = added(tmp_path, np.full((len(CHOSEN), 3), np.nan), flag)
    np.testing.assert_array_equal(after, before)


def real_headers() -> Path | None:
    """NVIDIA's own, where pip or a toolkit has brought them."""
    candidates = [*Path(openmm.__file__).parent.parent.glob("nvidia/*/include"), Path("/usr/local/cuda/include")]
    names = ("cuda.h", "builtin_types.h", "vector_functions.h", "cufft.h")
    return next((c for c in candidates if all((c / n).is_file() for n in names)), None)


@pytest.mark.parametrize("headers", ["ours", "NVIDIA's"])
def test_the_gpu_part_compiles_without_a_warning(headers):
    found = build.HERE / "cuda_types" if headers == "ours" else real_headers()
    if found is None:
        pytest.skip("no CUDA headers are installed")
    system = [f"-isystem{build.openmm_folder() / 'include'}", f"-isystem{found}"]
    options = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-DTORCHMDX_CUDA"]
    for source in ("cuda_kernel.cpp", "force.cpp"):
        command = [COMPILER, *options, *system, build.HERE / source]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_flags_are_where_the_step_writes_them():
    from torchmdx.step import buffer_storage as flags

    text = (build.HERE / "cuda_kernel.cpp").read_text()
    wanted = f"OVERFLOW_FLAG = {flags.OVERFLOW}, NOT_FINITE_FLAG = {flags.NOT_FINITE}, "
    wanted += f"FAR_FLAG = {flags.FAR}, UNCERTAIN_FLAG = {flags.UNCERTAIN};"
    assert wanted in text
