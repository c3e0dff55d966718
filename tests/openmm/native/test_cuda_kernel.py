"""The plugin's GPU kernels, compiled for the CPU: what they read, write and leave alone. And the GPU part compiles."""

import ctypes
import itertools
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

openmm = pytest.importorskip("openmm", reason="needs OpenMM")

from torchmdx.openmm.native import build  # noqa: E402

COMPILER = shutil.which("g++")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++")

# What OpenMM's dialect stands for, with one thread that does all the work.
DIALECT = """
#include <cmath>
using std::floor;
using std::sqrt;
#define KERNEL extern "C"
#define DEVICE static
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


def compiled(folder: Path, precision: str, offsets: bool, links: bool = False, periodic: bool = False) -> ctypes.CDLL:
    text = (build.HERE / "kernels.h").read_text()
    source = text.split('R"(', 1)[1].split(')";', 1)[0]
    (folder / "kernels.cpp").write_text(DIALECT + source)
    real = "double" if precision == "double" else "float"
    defines = [f"-DREAL={real}", "-DOVERFLOW_FLAG=1", "-DNOT_FINITE_FLAG=2", "-DFAR_FLAG=4", "-DUNCERTAIN_FLAG=5"]
    defines += ["-DMIXED"] * (precision == "mixed") + ["-DOFFSETS"] * offsets
    defines += ["-DLINKS"] * links + ["-DPERIODIC"] * periodic
    made = folder / f"kernels-{precision}-{offsets}-{links}-{periodic}.so"
    command = [COMPILER, "-Wall", "-Werror", "-ffp-contract=off", "-shared", "-fPIC", *defines]
    subprocess.run([*command, folder / "kernels.cpp", "-o", made], check=True, capture_output=True)
    return ctypes.CDLL(str(made))


def address(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def places() -> tuple[np.ndarray, np.ndarray]:
    place = np.full(NUM, -1, dtype=np.int32)
    place[CHOSEN] = np.arange(len(CHOSEN))
    return np.pad(ORDER, (0, PADDED - NUM)).astype(np.int32), place


@pytest.mark.nightly_for("mixed-True", "mixed-False", "single-True")
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


@pytest.mark.parametrize("periodic", [False, True])
def test_link_atoms_are_placed_and_their_forces_distributed(tmp_path, periodic):
    """Particles 5 and 0 are the region, 4 and 6 the outer atoms of links at 0, and 2 that of one at 5."""
    rng = np.random.default_rng(5)
    chosen, inner, num_own = np.array([5, 0, 4, 6, 2]), np.array([1, 1, 0], np.int32), 2
    distances, here = np.array([1.1, 0.9, 1.3]), rng.normal(size=(NUM, 3))
    held = here + (rng.integers(-2, 3, size=(NUM, 3)) @ BOX if periodic else 0.0)
    place = np.full(NUM, -1, dtype=np.int32)
    place[chosen] = np.arange(5)
    index = np.pad(ORDER, (0, PADDED - NUM)).astype(np.int32)
    posq = np.zeros((PADDED, 4))
    posq[:NUM, :3] = held[ORDER]
    found, cell, outer, bonds = np.zeros((5, 3)), np.zeros((3, 3)), np.zeros((3, 3)), np.zeros((3, 4))
    library = compiled(tmp_path, "double", False, links=True, periodic=periodic)
    arguments = [*map(address, (posq, index, place, found, cell)), NUM]
    arguments += [ctypes.c_double(x) for x in (LENGTH, *BOX.ravel())]
    library.gatherPositions(*arguments, address(outer), num_own)
    np.testing.assert_allclose(found[:2], LENGTH * held[chosen[:2]], atol=1e-11)
    np.testing.assert_allclose(outer, LENGTH * held[chosen[2:]], atol=1e-11)
    library.placeLinks(*map(address, (found, cell, outer, inner, distances, bonds)), num_own, 3)
    start, end = found[:2][inner], outer
    if periodic:  # the shortest of all images
        shifts = np.array(np.meshgrid(*[range(-5, 6)] * 3)).reshape(3, -1).T @ (LENGTH * BOX)
        images = (end - start)[:, None] + shifts
        end = start + np.array([each[np.argmin((each**2).sum(1))] for each in images])

    def links_at(first, second):
        bond = second - first
        return first + distances[:, None] * bond / np.sqrt((bond**2).sum(1, keepdims=True))

    np.testing.assert_allclose(found[2:], links_at(start, end), atol=1e-10)
    forces, step = rng.normal(size=(5, 3)), 1e-6
    wanted = np.zeros((NUM, 3))
    wanted[chosen[:2]] = forces[:2]
    for k, axis in itertools.product(range(3), range(3)):
        shift = step * np.eye(3)[axis]
        for particle, way in ((chosen[inner[k]], (shift, 0.0)), (chosen[2 + k], (0.0, shift))):
            change = links_at(start + way[0], end + way[1])[k] - links_at(start - way[0], end - way[1])[k]
            wanted[particle, axis] += forces[2 + k] @ change / (2 * step)
    buffers, flags = np.zeros((3, PADDED), np.int64), np.zeros(8, np.int64)
    arguments = [*map(address, (forces, flags, buffers, index, place)), NUM, PADDED, ctypes.c_double(FACTOR)]
    library.addForces(*arguments, address(inner), address(bonds), num_own, 3)
    np.testing.assert_allclose(buffers[:, :NUM].T / FACTOR, wanted[ORDER], atol=1e-7)


def real_headers() -> Path | None:
    """NVIDIA's own, where pip or a toolkit has brought them."""
    candidates = [*Path(openmm.__file__).parent.parent.glob("nvidia/*/include"), Path("/usr/local/cuda/include")]
    names = ("cuda.h", "builtin_types.h", "vector_functions.h", "cufft.h")
    return next((c for c in candidates if all((c / n).is_file() for n in names)), None)


@pytest.mark.nightly_for("ours")
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
