"""Redirecting a library's CUDA contexts, with a driver and a library of our own that count what is called."""

import ctypes
import itertools
import os
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

pytest.importorskip("openmm")

from torchmdx.openmm.native import build, one_context

COMPILER = shutil.which("cc") or shutil.which("gcc")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")

SPIN, BLOCKING = 1, 4  # CU_CTX_SCHED_SPIN, CU_CTX_SCHED_BLOCKING_SYNC
FAILED = 999

DRIVER = """
#include <stdlib.h>
int retained[2], released[2], flags[2], pushed, created, destroyed, retain_fails, push_fails;
void *current, *last_destroyed;
static char primary[2];
int cuDevicePrimaryCtxRetain(void **context, int device) {
    if (retain_fails) return retain_fails;
    __atomic_add_fetch(&retained[device], 1, __ATOMIC_SEQ_CST);
    *context = &primary[device];
    return 0;
}
int cuDevicePrimaryCtxRelease_v2(int device) { __atomic_add_fetch(&released[device], 1, __ATOMIC_SEQ_CST); return 0; }
int cuDevicePrimaryCtxSetFlags_v2(int device, unsigned value) { flags[device] = value; return 0; }
int cuCtxPushCurrent_v2(void *context) { if (push_fails) return push_fails; pushed++; current = context; return 0; }
static int real(void **context) { created++; *context = malloc(1); return 0; }
int cuCtxCreate_v2(void **context, unsigned flags, int device) { return real(context); }
int cuCtxCreate_v3(void **context, void *affinity, int count, unsigned flags, int device) { return real(context); }
int cuCtxCreate_v4(void **context, void *parameters, unsigned flags, int device) { return real(context); }
int cuCtxDestroy_v2(void *context) { destroyed++; last_destroyed = context; return 0; }
int preference;
int cuCtxGetCurrent(void **context) { *context = current; return 0; }
int cuCtxSetCacheConfig(int value) { preference = value; return 0; }
"""

CALLS = {
    "v2": "int cuCtxCreate_v2(void **, unsigned, int);",
    "v3": "int cuCtxCreate_v3(void **, void *, int, unsigned, int);",
    "v4": "int cuCtxCreate_v4(void **, void *, unsigned, int);",
}
ARGUMENTS = {"v2": "c, f, d", "v3": "c, 0, 0, f, d", "v4": "c, 0, f, d"}

# How a library may be linked: its slots are read-only after loading, filled at the first call, or not in the PLT.
LINKS = {
    "relro": ["-Wl,-z,relro,-z,now"],
    "lazy": ["-Wl,-z,lazy"],
    "no-plt": ["-fno-plt", "-Wl,-z,relro,-z,now"],
}


def compile_shared(path: Path, source: str, *options: str) -> Path:
    path.with_suffix(".c").write_text(source)
    command = [COMPILER, "-w", "-shared", "-fPIC", "-o", path, path.with_suffix(".c"), *options]
    subprocess.run(command, check=True, capture_output=True)
    return path


numbers = itertools.count()


class Bench:
    """A driver, a library that calls it, and a copy of the redirecting functions with state of their own."""

    def __init__(self, folder: Path, link: str = "relro", version: str = "v4") -> None:
        # A name that no other test has, and counters of its own: share_context makes a driver's symbols global.
        driver_name = f"fakecuda{next(numbers)}"
        driver = compile_shared(folder / f"lib{driver_name}.so", DRIVER, f"-Wl,-Bsymbolic,-soname,lib{driver_name}.so")
        source = f"""
            {CALLS[version]}
            int cuCtxDestroy_v2(void *);
            int cuCtxSetCacheConfig(int);
            int prefer(int p) {{ return cuCtxSetCacheConfig(p); }}
            int create(void **c, unsigned f, int d) {{ return cuCtxCreate_{version}({ARGUMENTS[version]}); }}
            int destroy(void *c) {{ return cuCtxDestroy_v2(c); }}
        """
        links = [*LINKS[link], f"-L{folder}", f"-l{driver_name}", f"-Wl,-rpath,{folder}"]
        self.path = compile_shared(folder / "libCaller.so", source, *links)
        self.driver_path = driver
        self.driver = ctypes.CDLL(str(driver))
        # Lazily, where the library itself allows that, and bound to its own driver, not to that of an earlier test.
        self.library = ctypes.CDLL(str(self.path), mode=os.RTLD_LAZY | os.RTLD_DEEPBIND)
        self.library.destroy.argtypes = [ctypes.c_void_p]
        self.functions = ctypes.CDLL(shutil.copy(build.context_library()._name, folder / "redirect.so"))

    def share(self) -> str | None:
        return one_context.share_context(str(self.path), str(self.driver_path))

    def create(self, device: int = 0, flags: int = 0) -> int:
        context = ctypes.c_void_p()
        assert self.library.create(ctypes.byref(context), flags, device) == 0
        return context.value

    def destroy(self, context: int) -> None:
        assert self.library.destroy(context) == 0

    def count(self, name: str, device: int | None = None) -> int:
        if device is None:
            return ctypes.c_int.in_dll(self.driver, name).value
        return (ctypes.c_int * 2).in_dll(self.driver, name)[device]

    def pointer(self, name: str) -> int:
        return ctypes.c_void_p.in_dll(self.driver, name).value

    def fail(self, name: str) -> None:
        ctypes.c_int.in_dll(self.driver, name).value = FAILED


@pytest.fixture
def make_bench(tmp_path, monkeypatch):
    monkeypatch.delenv(one_context.OFF, raising=False)

    def make(*arguments: str) -> Bench:
        made = Bench(tmp_path, *arguments)
        monkeypatch.setattr(one_context, "context_library", lambda: made.functions)
        return made

    return make


@pytest.fixture
def bench(make_bench) -> Bench:
    return make_bench()


@pytest.mark.parametrize("version", CALLS)
@pytest.mark.parametrize("link", LINKS)
def test_a_context_is_the_primary_one_however_the_library_is_linked(make_bench, link, version):
    bench = make_bench(link, version)
    assert bench.share() is None
    context = bench.create(device=1)
    assert context == bench.pointer("current")  # made current, as cuCtxCreate does
    assert (bench.count("retained", 1), bench.count("pushed"), bench.count("created")) == (1, 1, 0)
    bench.destroy(context)
    assert (bench.count("released", 1), bench.count("destroyed")) == (1, 0)
    assert one_context.contexts_handed_out() == (1, 1)


def test_slots_that_a_call_has_bound_already_are_redirected_too(make_bench):
    bench = make_bench("lazy")
    own = bench.create()
    bench.destroy(own)
    assert (bench.count("created"), bench.count("destroyed")) == (1, 1)
    assert bench.share() is None
    bench.destroy(bench.create())
    assert (bench.count("created"), bench.count("destroyed")) == (1, 1)
    assert (bench.count("retained", 0), bench.count("released", 0)) == (1, 1)


def test_contexts_of_two_devices_end_in_any_order(bench):
    bench.share()
    first, second, other = bench.create(0), bench.create(0), bench.create(1)
    assert first == second != other
    bench.destroy(other)
    assert (bench.count("released", 0), bench.count("released", 1)) == (0, 1)
    bench.destroy(first)
    bench.destroy(second)
    assert (bench.count("released", 0), bench.count("released", 1)) == (2, 1)
    assert bench.count("destroyed") == 0


def test_a_context_from_before_is_destroyed_really(bench):
    own = bench.create()
    bench.share()
    shared = bench.create()
    bench.destroy(own)
    assert (bench.count("destroyed"), bench.pointer("last_destroyed")) == (1, own)
    bench.destroy(shared)
    assert (bench.count("destroyed"), bench.count("released", 0)) == (1, 1)


@pytest.mark.parametrize("failing", ["retain_fails", "push_fails"])
def test_what_the_driver_refuses_is_passed_on_and_nothing_is_kept(bench, failing):
    bench.share()
    bench.fail(failing)
    context = ctypes.c_void_p()
    assert bench.library.create(ctypes.byref(context), 0, 0) == FAILED
    assert bench.count("retained", 0) == bench.count("released", 0)
    assert one_context.contexts_handed_out() == (0, 0)


def test_spinning_is_passed_on_and_blocking_is_not(bench):
    bench.share()
    bench.create(0, SPIN)
    bench.create(1, BLOCKING)
    assert (bench.count("flags", 0), bench.count("flags", 1)) == (SPIN, 0)


def test_sharing_twice_is_sharing_once_and_can_be_undone(bench):
    assert bench.share() is None
    assert bench.share() is None
    bench.destroy(bench.create())
    assert (bench.count("retained", 0), bench.count("created")) == (1, 0)
    one_context.unshare_context()
    own = bench.create()
    bench.destroy(own)
    assert (bench.count("created"), bench.count("destroyed")) == (1, 1)
    assert bench.share() is None
    bench.destroy(bench.create())
    assert (bench.count("retained", 0), bench.count("created")) == (2, 1)


def test_threads_may_create_and_destroy_at_once(bench):
    bench.share()

    def work(device: int) -> None:
        for _ in range(500):
            bench.destroy(bench.create(device))

    threads = [threading.Thread(target=work, args=(number % 2,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for device in (0, 1):
        assert (bench.count("retained", device), bench.count("released", device)) == (1000, 1000)
    assert one_context.contexts_handed_out() == (2000, 2000)
    assert bench.count("destroyed") == 0


def test_it_says_why_not(bench, monkeypatch):
    absent = one_context.share_context("libNotThere.so", str(bench.driver_path))
    assert absent == "no loaded library libNotThere.so that calls cuCtxCreate and cuCtxDestroy was found"
    missing = one_context.share_context(str(bench.path), "libnocuda.so.1")
    assert missing.startswith("libnocuda.so.1 cannot be loaded: ")
    assert "lacks functions for primary contexts" in one_context.share_context(str(bench.path), "libc.so.6")
    monkeypatch.setenv(one_context.OFF, "1")
    assert bench.share() == "$TORCHMDX_OWN_CONTEXT is set"
    own = bench.create()
    assert (bench.count("created"), bench.count("retained", 0)) == (1, 0)
    bench.destroy(own)
    assert bench.count("destroyed") == 1


def test_slots_that_cannot_be_written_are_all_left_alone(bench, tmp_path):
    """With cuCtxCreate redirected and cuCtxDestroy not, OpenMM would destroy torch's context."""
    # The first slot can be written, the second cannot.
    refuse = (
        "int refuse(void *p, unsigned long n, int m) { static int calls; return calls++ ? -1 : mprotect(p, n, m); }"
    )
    (tmp_path / "refuse.c").write_text(f"#include <sys/mman.h>\n{refuse}")
    sources = [build.HERE / "one_context.c", tmp_path / "refuse.c"]
    objects = [tmp_path / f"{source.stem}.o" for source in sources]
    for source, made, extra in zip(sources, objects, (["-Dmprotect=refuse"], []), strict=True):
        subprocess.run([COMPILER, "-w", "-fPIC", "-c", source, "-o", made, *extra], check=True, capture_output=True)
    subprocess.run([COMPILER, "-shared", "-o", tmp_path / "refusing.so", *objects], check=True, capture_output=True)
    bench.functions = ctypes.CDLL(str(tmp_path / "refusing.so"))
    assert bench.share() == f"the relocation entries of {bench.path} cannot be written"
    bench.destroy(bench.create())
    assert (bench.count("created"), bench.count("destroyed"), bench.count("retained", 0)) == (1, 1, 0)


def test_a_driver_that_will_not_do_leaves_what_is_shared_as_it_is(bench):
    bench.share()
    context = bench.create()
    assert "lacks functions" in one_context.share_context(str(bench.path), "libc.so.6")
    bench.destroy(context)
    bench.destroy(bench.create())
    assert (bench.count("retained", 0), bench.count("released", 0), bench.count("created")) == (2, 2, 0)


def test_a_loss_is_told_once(monkeypatch, caplog):
    monkeypatch.setenv(one_context.OFF, "1")
    monkeypatch.setattr(one_context, "_told", set())
    assert one_context.share_or_warn() == one_context.share_or_warn() == "$TORCHMDX_OWN_CONTEXT is set"
    assert len(caplog.records) == 1
    assert "costs about 0.3 ms per step: $TORCHMDX_OWN_CONTEXT is set" in caplog.text


def test_the_preference_for_shared_memory_stays_out_of_the_primary_context(bench):
    assert bench.library.prefer(1) == 0
    assert bench.count("preference") == 1  # nothing is redirected yet
    assert bench.share() is None
    context = bench.create()
    assert bench.library.prefer(2) == 0
    assert bench.count("preference") == 1
    bench.destroy(context)
    assert bench.library.prefer(3) == 0  # a context that was not handed out, or was given back
    assert bench.count("preference") == 3
