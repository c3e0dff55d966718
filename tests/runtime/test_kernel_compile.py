"""Parallel compilation of the kernels of a first evaluation: which kernels, how often, and errors."""

import contextlib
import importlib.util
import os
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch

from torchmdx.runtime import kernel_compile

tl = pytest.importorskip("triton.language")
knobs = pytest.importorskip("triton.knobs")
JITFunction = pytest.importorskip("triton.runtime.jit").JITFunction
triton_driver = pytest.importorskip("triton.runtime.driver")
GPU = torch.device("cuda", 0)


class Kernels:
    """Stands for Triton: `launch` describes a kernel that is not compiled to the hook, as JITFunction.run does.

    module: where the kernels belong. constant: of every kernel; a set has no form as text.
    """

    def __init__(
        self, together: int = 1, constant: object = None, module: str = "torchmdx.engines.gpu.triton.m"
    ) -> None:
        self.constant, self.module = constant, module
        self.described: list[str] = []
        self.compiled: dict[str, int] = {}
        self.launchers: list[str] = []
        self.launched: list[str] = []
        self.gate = threading.Barrier(together)  # opens when so many are compiled at the same time

    def launch(self, name: str) -> None:
        if name not in self.compiled:
            kernel = SimpleNamespace(
                preload=self.preload, fn=SimpleNamespace(__module__=self.module), name=name, of=self
            )
            if JITFunction._call_hook(kernel, knobs.runtime.jit_cache_hook, "float32"):
                return
            self.preload(name)
        self.launched.append(name)

    @staticmethod
    def call_hook(kernel: SimpleNamespace, hook, key: str) -> bool | None:
        """In place of JITFunction._call_hook."""
        if not hook:
            return None
        kernel.of.described.append(kernel.name)
        if isinstance(kernel.of.constant, set):
            raise TypeError("Object of type set is not JSON serializable")
        fn = SimpleNamespace(module=kernel.of.module, name=kernel.name, jit_function=kernel)
        given = {"specialization_data": kernel.name, "constants": {(3,): kernel.of.constant}}
        return hook(key=key, fn=fn, compile=given, is_manual_warmup=False)

    def preload(self, name: str) -> "Compiled":
        self.gate.wait(timeout=20)
        self.compiled[name] = self.compiled.get(name, 0) + 1
        return Compiled(name, self.launchers)


class Compiled:
    """A compiled kernel, which is loaded at its first access."""

    def __init__(self, name: str, launchers: list[str]) -> None:
        self.name, self.launchers = name, launchers
        self.src, self.metadata = name, "metadata"

    @property
    def run(self) -> None:
        assert threading.current_thread() is threading.main_thread()
        self.launchers.append(self.name)


class Launcher:
    """Stands for Triton's class of launchers: compiles and loads one that is not used."""

    made: ClassVar[list[str]] = []

    def __init__(self, src: str, metadata: str) -> None:
        assert metadata == "metadata"
        assert threading.current_thread() is not threading.main_thread()
        self.made.append(src)


@pytest.fixture
def recorded(monkeypatch):
    """Whether launches are only recorded; needs no GPU."""
    now = [False]

    @contextlib.contextmanager
    def nothing_running(device):
        now[0] = True
        with contextlib.suppress(RuntimeError):
            yield
        now[0] = False

    monkeypatch.setattr(kernel_compile, "_discarded_recording", nothing_running)
    monkeypatch.setattr(JITFunction, "_call_hook", Kernels.call_hook)
    monkeypatch.setattr(Launcher, "made", [])
    monkeypatch.setattr(triton_driver, "driver", SimpleNamespace(active=SimpleNamespace(launcher_cls=Launcher)))
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    return now


def test_on_the_cpu_work_is_done_once(recorded):
    kernels = Kernels()
    kernel_compile.run_compiled(lambda: kernels.launch("embed"), torch.device("cpu"))
    assert (kernels.compiled, kernels.launched) == ({"embed": 1}, ["embed"])


def test_all_kernels_are_compiled_at_the_same_time_and_once(recorded, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2})
    kernels = Kernels(together=3)

    def work():
        for name in ("search", "embed", "search", "forces"):
            kernels.launch(name)

    kernel_compile.run_compiled(work, GPU)
    assert kernels.compiled == {"search": 1, "embed": 1, "forces": 1}
    assert sorted(Launcher.made) == ["embed", "forces", "search"]
    assert kernels.launchers == ["search", "embed", "forces"]
    assert kernels.launched == ["search", "embed", "search", "forces"]
    kernel_compile.run_compiled(work, GPU)  # nothing is missing any more: one run
    assert kernels.launched[4:] == ["search", "embed", "search", "forces"]


def test_kernels_of_other_threads_are_not_affected(recorded):
    kernels, other = Kernels(), Kernels()

    def work():
        thread = threading.Thread(target=other.launch, args=(f"other{len(other.launched)}",))
        thread.start()
        thread.join()
        kernels.launch("embed")

    kernel_compile.run_compiled(work, GPU)
    assert kernels.launched == ["embed"]
    assert other.launched == [f"other{k}" for k in range(3)]  # at each of the three times
    kernels.launch("later")  # and so are this thread's, now that the work is done
    assert kernels.launched == ["embed", "later"]


def test_kernels_after_a_read_of_the_device_are_found_in_a_later_round(recorded):
    kernels, seen = Kernels(), []

    def work():
        kernels.launch("count")
        if not seen:
            if recorded[0]:
                raise RuntimeError("an evaluation must have run before it is captured")
            seen.append(len(kernels.launched))
        kernels.launch("copy")

    kernel_compile.run_compiled(work, GPU)
    assert kernels.compiled == {"count": 1, "copy": 1}
    assert seen == [1]  # looked at after its kernel had run
    assert kernels.launched[-2:] == ["count", "copy"]


def test_a_kernel_that_is_not_known_again_is_left_to_its_launch(recorded):
    kernels, asked = Kernels(), []
    launch = kernels.launch
    kernels.preload = asked.append
    kernel_compile.run_compiled(lambda: launch("embed"), GPU)
    assert asked == ["embed", "embed"]  # beside the others, and then at its launch
    assert kernels.launched == ["embed"]


@pytest.mark.parametrize(("constant", "beside"), [("bf16", False), ("tf32x3", True), (3, True), (tl.bfloat16, True)])
def test_a_constant_that_would_be_taken_for_a_type_is_left_to_its_launch(recorded, constant, beside):
    """`preload` would convert the string "bf16" to a dtype and compile another kernel."""
    kernels, other, asked = Kernels(constant=constant), Kernels(), []
    other.preload = lambda name: (asked.append(name), other.compiled.setdefault(name, 1), None)[-1]
    mine = kernels.preload
    kernels.preload = lambda name: (asked.append((name, recorded[0], bool(kernel_compile._thread.active))), mine(name))[
        -1
    ]

    def work():
        other.launch("embed")
        kernels.launch("multiply")

    kernel_compile.run_compiled(work, GPU)
    assert asked[0] == "embed"
    at_its_launch = ("multiply", False, True)  # in the evaluation itself, not in a thread
    assert asked[1:] == [("multiply", False, False) if beside else at_its_launch]
    assert kernels.compiled == {"multiply": 1}
    assert kernels.launched[-1] == "multiply"


def test_errors_of_the_work_and_of_the_compiler_are_not_lost(recorded):
    kernels = Kernels()

    def broken():
        kernels.launch("embed")
        if not recorded[0]:
            raise ValueError("charges must be whole")

    with pytest.raises(ValueError, match="whole"):
        kernel_compile.run_compiled(broken, GPU)
    kernels.preload = lambda name: (_ for _ in ()).throw(SyntaxError(f"{name} does not compile"))  # at its launch too
    with pytest.raises(SyntaxError, match="forces does not compile"):
        kernel_compile.run_compiled(lambda: kernels.launch("forces"), GPU)
    kernels.preload = Kernels().preload
    kernels.launch("read")  # nothing is left that would stop it
    assert kernels.launched[-1] == "read"


def test_kernels_of_others_are_not_described(recorded):
    """Describing a kernel fails if a constant cannot be serialised."""
    own, library, beside = Kernels(), Kernels(constant={1}, module="library"), Kernels(constant={1})

    def work():
        thread = threading.Thread(target=beside.launch, args=("beside",))  # of this package, in another thread
        thread.start()
        thread.join()
        library.launch("theirs")
        own.launch("embed")

    kernel_compile.run_compiled(work, GPU)
    assert own.described == ["embed"] * 2
    assert library.described == beside.described == []
    assert (library.compiled, beside.compiled, own.compiled) == ({"theirs": 1}, {"beside": 1}, {"embed": 1})


def test_triton_is_changed_only_while_an_evaluation_runs(recorded):
    before, seen = JITFunction._call_hook, []
    assert knobs.runtime.jit_cache_hook is None

    def inner():
        seen.append(JITFunction._call_hook)

    def work():
        seen.append(JITFunction._call_hook)
        kernel_compile.run_compiled(inner, GPU)
        seen.append(JITFunction._call_hook)
        assert knobs.runtime.jit_cache_hook is None

    kernel_compile.run_compiled(work, GPU)
    assert seen == [kernel_compile._call_hook] * 3
    assert JITFunction._call_hook is before
    with pytest.raises(ZeroDivisionError):
        kernel_compile.run_compiled(lambda: 1 / 0, GPU)
    assert JITFunction._call_hook is before


def test_hooks_of_other_libraries_are_still_called(recorded, monkeypatch):
    asked = []
    monkeypatch.setattr(knobs.runtime, "jit_cache_hook", lambda *, fn, **_: asked.append(fn.name))
    own, library = Kernels(), Kernels(module="library")

    def work():
        library.launch("theirs")
        own.launch("embed")

    kernel_compile.run_compiled(work, GPU)
    assert asked == ["theirs"]
    own.launch("later")
    assert asked == ["theirs", "later"]


def test_kernels_that_cannot_be_described_are_compiled_where_they_are_launched(recorded):
    kernels = Kernels(constant={1})
    kernel_compile.run_compiled(lambda: [kernels.launch(name) for name in ("embed", "forces")], GPU)
    assert kernels.compiled == {"embed": 1, "forces": 1}
    assert kernels.launched == ["embed", "forces"]


@pytest.mark.parametrize("signature", ["hook last", "no preload", "nothing"])
def test_a_triton_of_another_form_compiles_one_after_the_other(recorded, monkeypatch, signature):
    if signature == "hook last":
        monkeypatch.setattr(JITFunction, "_call_hook", lambda self, key, signature, before: None)
    else:
        monkeypatch.delattr(JITFunction, "preload" if signature == "no preload" else "_call_hook")
    kernel_compile._triton_is_supported.cache_clear()
    done = []
    try:
        kernel_compile.run_compiled(lambda: done.append(getattr(JITFunction, "_call_hook", None)), GPU)
    finally:
        kernel_compile._triton_is_supported.cache_clear()
    assert len(done) == 1
    assert done[0] is not kernel_compile._call_hook


def test_the_installed_triton_is_supported():
    kernel_compile._triton_is_supported.cache_clear()
    assert kernel_compile._triton_is_supported()


TWO_KERNELS = """
import triton
import triton.language as tl

LEAST = tl.constexpr(2)

@triton.jit
def inner(x):
    return x + LEAST

@triton.jit
def first(X):
    tl.store(X, inner(1))

@triton.jit
def second(X):
    tl.store(X, inner(2))
"""


def test_hashes_of_kernels_do_not_depend_on_which_one_came_first(tmp_path):
    """They name files on disk."""
    path, found = tmp_path / "kernels.py", []
    path.write_text(TWO_KERNELS)
    for order in (("first", "second"), ("second", "first")):
        spec = importlib.util.spec_from_file_location("kernels", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for name in order:
            kernel_compile._hash_in_order(getattr(module, name))
        assert any(name == "LEAST" for name, _ in module.first.used_global_vals)
        found.append((module.first.cache_key, module.second.cache_key))
    assert found[0] == found[1]


ON_A_GPU = """
import logging, torch
logging.basicConfig(level=logging.INFO, format="%(message)s")
from torchmdx import System, load
from torchmdx.step.captured_step import CapturedStep
from torchmdx.engines.plan import few_atoms
from torchmdx.models.potential import Potential

few_atoms.MOST_ONE_LAUNCH = 0  # kernels of Triton
potential = load("organic-1", dtype=torch.float32, device="cuda")
places = torch.tensor([[0.0, 0, 0], [0.96, 0, 0], [-0.24, 0.93, 0]])
def forces(mode, **more):
    return CapturedStep(potential, System.create(places, [8, 1, 1]), mode=mode, **more)(places).forces
first = forces("MODE")
logging.info("again")
again = forces("MODE")
logging.info("done")
exact = CapturedStep(load("organic-1", dtype=torch.float64, device="cuda"), System.create(places, [8, 1, 1]))(places)
assert abs(first - again).max() == 0 and abs(first - exact.forces).max() < 1e-4, (first, again, exact.forces)
"""


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_a_first_step_on_a_fresh_machine(mode, tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ON_A_GPU.replace("MODE", mode)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"TRITON_CACHE_DIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    lines = done.stderr.splitlines()
    first = lines[: lines.index("again")]
    assert max(int(line.split()[0]) for line in first if "kernels compiled" in line) >= 5
    assert "kernels compiled" not in "".join(lines[len(first) : lines.index("done")])


MANY = """
import triton
import triton.language as tl
"""
ONE = """
@triton.jit
def kernel_{n}(out, {names}):
    tl.store(out, {total})
"""


@pytest.mark.gpu
def test_each_kernel_gets_its_own_launcher(tmp_path, monkeypatch):
    """Threads that switch often and load launchers that were loaded before: a wrong one has other arguments."""
    sizes, before = range(1, 25), sys.getswitchinterval()
    for round_ in range(3):
        source = tmp_path / f"many_kernels_{round_}.py"
        text = MANY
        for n in sizes:
            names = [f"a{k}" for k in range(n)]
            text += ONE.format(n=n, names=", ".join(names), total=f"{round_} + " + " + ".join(names))
        source.write_text(text)
        spec = importlib.util.spec_from_file_location(f"torchmdx.many_kernels_{round_}", source)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        outs = [torch.zeros(1, dtype=torch.int32, device="cuda") for _ in sizes]

        def work(module=module, outs=outs):
            for n, out in zip(sizes, outs, strict=True):
                getattr(module, f"kernel_{n}")[(1,)](out, *range(100, 100 + n))

        sys.setswitchinterval(1e-6)
        try:
            kernel_compile.run_compiled(work, GPU)
        finally:
            sys.setswitchinterval(before)
        assert [int(out) for out in outs] == [round_ + sum(range(100, 100 + n)) for n in sizes]
