"""CUDA C++ compiled by NVRTC: kept in the cache, and errors in one line."""

import ctypes

import pytest

from torchmdx.runtime import cuda_source
from torchmdx.runtime.compile_cache import VARIABLE, CompileError

SOURCE = 'extern "C" __global__ void fill(float *x) { x[threadIdx.x] = VALUE; }'


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def needs_nvrtc():
    try:
        cuda_source.nvrtc()
    except CompileError as error:
        pytest.skip(str(error))


class Version13:
    """Stands for NVRTC, of which only the version is asked for."""

    def nvrtcVersion(self, major, minor):
        major._obj.value, minor._obj.value = 13, 0
        return 0


def test_code_is_compiled_once_for_each_text_architecture_and_constant(cache, monkeypatch):
    compiled = []

    def compile(library, name, files, options):
        compiled.append((name, *(option for option in options if option != "--std=c++17"), files["value.h"]))
        return b"code %d" % len(compiled)

    monkeypatch.setattr(cuda_source, "nvrtc", Version13)
    monkeypatch.setattr(cuda_source, "_compiled", compile)
    files = {"fill.cu": SOURCE, "value.h": "1"}
    first = cuda_source.cubin("fill.cu", files, "sm_90")
    assert cuda_source.cubin("fill.cu", files, "sm_90") == first == b"code 1"
    assert cuda_source.cubin("fill.cu", files | {"value.h": "2"}, "sm_90") == b"code 2"
    assert cuda_source.cubin("fill.cu", files, "sm_100") == b"code 3"
    assert cuda_source.cubin("fill.cu", files, "sm_90", {"VALUE": 7}) == b"code 4"
    older, newer = (f"--gpu-architecture=sm_{number}" for number in (90, 100))
    assert compiled == [
        ("fill.cu", older, "1"),
        ("fill.cu", older, "2"),
        ("fill.cu", newer, "1"),
        ("fill.cu", older, "-DVALUE=7", "1"),
    ]


def test_a_machine_without_nvrtc_says_so(monkeypatch):
    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(cuda_source, "_candidates", lambda: iter(()))
    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(CompileError, match="NVRTC, the compiler of torch's CUDA wheels, was not found"):
        cuda_source.nvrtc.__wrapped__()


def test_files_include_each_other(cache, needs_nvrtc):
    files = {"fill.cu": f'#include "value.h"\n{SOURCE}', "value.h": "#define VALUE 3\n"}
    assert cuda_source.cubin("fill.cu", files, "sm_90")[:4] == b"\x7fELF"
    assert cuda_source.cubin("fill.cu", {"fill.cu": SOURCE}, "sm_90", {"VALUE": 3})[:4] == b"\x7fELF"


def test_an_error_names_the_file_and_the_first_message(cache, needs_nvrtc):
    with pytest.raises(CompileError, match=r'NVRTC could not compile fill.cu: fill.cu\(1\): error: .*"VALUE"'):
        cuda_source.cubin("fill.cu", {"fill.cu": SOURCE}, "sm_90")


def test_kernels_of_a_file_are_compiled_one_by_one(cache, needs_nvrtc):
    source = """
    template <int VALUE> __device__ void fill(int *to) { *to = VALUE + MORE; }
    extern "C" __global__ void NAME(int *to) { KERNEL(to); }
    """
    kernels = {"fill_three": "fill<3>", "fill_four": "fill<4>"}
    found = cuda_source.cubins("fill.cu", {"fill.cu": source}, "sm_90", kernels, {"MORE": 1})
    assert found.keys() == kernels.keys()
    assert all(code[:4] == b"\x7fELF" and name.encode() in code for name, code in found.items())
    assert len(list(cache.glob("fill-*.so"))) == 2
    with pytest.raises(CompileError, match='"missing" is undefined'):
        cuda_source.cubins("fill.cu", {"fill.cu": source}, "sm_90", {**kernels, "no": "missing"}, {"MORE": 1})


STRUCTS = """
struct Other {
    int none;
};
struct Params {
    const float *x, *y; // two pointers; and a comment
    double *z;
    int count, rows;
    long long place;
    float unit;
};
struct Last { float far; };
"""


def test_members_of_a_struct_are_those_of_the_source():
    pointers = [(name, ctypes.c_void_p) for name in "xyz"]
    integers = [("count", ctypes.c_int), ("rows", ctypes.c_int), ("place", ctypes.c_longlong)]
    assert cuda_source.members(STRUCTS, "Params") == (*pointers, *integers, ("unit", ctypes.c_float))
