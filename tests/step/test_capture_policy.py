"""Modes, graphs, audits and memory of a captured step, and its report on them."""

import gc
import logging
import threading
import weakref

import numpy as np
import pytest
import torch
from faults import spoil, through_the_engine

from torchmdx import Batch, System
from torchmdx.neighbors.search import EdgeSearch
from torchmdx.step import capture_policy, change
from torchmdx.step.capture_policy import GraphPolicy
from torchmdx.step.captured_step import CapturedStep
from torchmdx.step.device_memory import memory_explained
from torchmdx.step.graph import record
from torchmdx.step.results import AuditError, GraphRefused, OutOfDeviceMemory

KERNELS = "kernels, float32"


# -- modes ---------------------------------------------------------------------------------------------------------


def test_without_a_gpu_nothing_is_captured_and_why_says_so(trained, ethanol):
    step = CapturedStep(trained("cpu"), System.from_ase(ethanol))
    for _ in range(4):
        step(ethanol.positions)
        step.capture()
    assert step.mode == "eager"
    assert step.why == "no GPU in use: one call into C on the CPU"
    exact = CapturedStep(trained("cpu"), System.from_ase(ethanol), mode="eager", engine="exact")
    assert exact.why == "no GPU in use: exact model: it was asked for by name"


def test_mode_graph_insists(trained, ethanol):
    with pytest.raises(GraphRefused, match="mode 'graph' needs a CUDA GPU, got a potential on the cpu"):
        CapturedStep(trained("cpu"), System.from_ase(ethanol), mode="graph")


@pytest.mark.gpu
def test_mode_auto_captures_at_the_third_evaluation(trained, ethanol, graphs_pay):
    step = CapturedStep(trained("cuda"), System.from_ase(ethanol))
    for _ in range(2):
        step(ethanol.positions)
        assert (step.mode, step.why) == ("eager", "not captured yet")
        assert step.report().nodes is None
    step(ethanol.positions)
    assert step.mode == "graph"
    assert step.why.startswith("a replay takes ")
    assert set(step.policy.graphs) == {"host"}


@pytest.mark.gpu
def test_mode_graph_captures_at_once_and_mode_eager_never(trained, ethanol):
    insisting, refusing = (
        CapturedStep(trained("cuda"), System.from_ase(ethanol), mode=mode) for mode in ("graph", "eager")
    )
    insisting(ethanol.positions)
    assert insisting.mode == "graph"
    for _ in range(5):
        refusing(ethanol.positions)
        refusing.capture()
    assert (refusing.mode, refusing.why) == ("eager", "mode 'eager' was requested")


@pytest.mark.gpu
def test_the_report_of_a_graph(trained, ethanol):
    step = CapturedStep(trained("cuda"), System.from_ase(ethanol), mode="graph")
    for _ in range(3):
        step(ethanol.positions)
    report = step.report()
    assert (report.mode, report.engine_why) == ("graph", "fused kernels")
    assert report.engine in (KERNELS, f"{KERNELS}, one launch")
    assert (report.atoms, report.systems, report.edges, report.evaluations) == (9, 1, 72, 3)
    assert 0 < report.nodes < 200
    assert 0 < report.replay_ms < 1000  # which is faster is no matter of a test: others may use the GPU
    assert 0 < report.eager_ms < 1000
    assert 0 < report.capture_s < 60
    assert report.memory_bytes > 1000
    assert 0 < report.error < 1e-5
    assert 0 < report.table_error <= 1e-6


def test_the_report_without_a_graph(trained, ethanol):
    step = CapturedStep(trained("cpu"), System.from_ase(ethanol), audit_every=2)
    for _ in range(3):
        step(ethanol.positions)
    report = step.report()
    assert (report.mode, report.engine, report.engine_why) == ("eager", "compiled", "one call into C on the CPU")
    assert (report.atoms, report.systems, report.edges, report.evaluations) == (9, 1, 72, 3)
    assert report.head_room == pytest.approx(report.capacity / 72 - 1)
    assert report.searches >= 3
    assert (report.nodes, report.replay_ms, report.capture_s, report.recoveries) == (None, None, None, 0)
    assert report.eager_ms > 0
    assert 0 < report.error < 1e-5
    assert 0 < report.table_error <= 1e-6
    text = str(report)
    assert "eager ms" in text
    assert "replay" not in text
    assert "no GPU in use" in text


# The policy itself, with graphs and clocks that are made up.


class FakeGraph:
    seconds, num_bytes, num_nodes = 0.5, 0, 3

    def __init__(self, work, device):
        self.work = work
        work()

    def replay(self):
        self.work()


@pytest.fixture
def policy(monkeypatch):
    """policy(mode, eager seconds, replay seconds) for a simulated GPU."""

    def make(mode, eager, replay, graph=FakeGraph):
        monkeypatch.setattr(capture_policy, "Graph", graph)
        times = iter([eager, replay])
        monkeypatch.setattr(capture_policy, "seconds_per_run", lambda *_: next(times))
        monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
        return GraphPolicy(mode, torch.device("cuda"), "fused kernels")

    return make


def forces() -> torch.Tensor:
    return torch.zeros(2, 3)


def no_objection(launched: torch.Tensor) -> None:
    assert launched.shape == (2, 3)


def test_a_graph_that_pays_is_kept(policy):
    chosen = policy("auto", eager=3e-3, replay=1e-3)
    chosen.consider("host", lambda: None, forces, no_objection)
    assert list(chosen.graphs) == ["host"]
    assert chosen.why == (
        "a replay takes 1.000 ms, a launch 3.000 ms: the capture of 0.5 s is paid back in 251 evaluations"
    )


def test_a_graph_that_does_not_pay_is_not_kept(policy, caplog):
    chosen = policy("auto", eager=1e-3, replay=2e-3)
    assert chosen.due("host", 3)
    chosen.consider("host", lambda: None, forces, no_objection)
    assert not chosen.graphs
    assert not chosen.due("host", 4)
    assert chosen.why == "a replay takes 2.00e-03 s, a launch 1.00e-03 s"
    assert [r.message for r in caplog.records] == [f"running without a CUDA graph: {chosen.why}"]
    insisting = policy("graph", eager=1e-3, replay=2e-3)
    insisting.consider("host", lambda: None, forces, no_objection)
    assert list(insisting.graphs) == ["host"]


def test_a_graph_that_is_wrong_is_not_kept(policy):
    chosen = policy("auto", eager=3e-3, replay=1e-3)
    chosen.consider("host", lambda: None, forces, lambda launched: "its forces are wrong")
    assert (chosen.graphs, chosen.why) == ({}, "its forces are wrong")
    insisting = policy("graph", eager=3e-3, replay=1e-3)
    with pytest.raises(GraphRefused, match="the graph was refused: its forces are wrong"):
        insisting.consider("host", lambda: None, forces, lambda launched: "its forces are wrong")
    assert not insisting.graphs


def test_work_that_cannot_be_captured_runs_without_a_graph(policy):
    def broken(work, device):
        raise RuntimeError("operation not permitted when stream is capturing")

    chosen = policy("auto", eager=3e-3, replay=1e-3, graph=broken)
    chosen.consider("host", lambda: None, forces, no_objection)
    assert chosen.why == "capture failed: operation not permitted when stream is capturing"
    with pytest.raises(GraphRefused, match="capture failed: operation not permitted"):
        policy("graph", eager=3e-3, replay=1e-3, graph=broken).consider("host", lambda: None, forces, no_objection)


def test_mode_eager_is_never_due_and_never_captures(policy):
    chosen = policy("eager", eager=3e-3, replay=1e-3)
    assert not any(chosen.due("host", k) for k in (1, 3, 1000))
    chosen.consider("host", lambda: None, forces, no_objection)
    assert not chosen.graphs


@pytest.mark.parametrize(("mode", "first"), [("auto", 3), ("graph", 1)])
def test_when_a_capture_is_due(policy, mode, first):
    chosen = policy(mode, eager=3e-3, replay=1e-3)
    assert [k for k in range(1, 6) if chosen.due("host", k)] == list(range(first, 6))
    chosen.consider("host", lambda: None, forces, no_objection)
    assert not chosen.due("host", 6)
    assert chosen.due("device", 6)


def out_of_memory(*_):
    raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nAnd a second line.")


class TooLarge(FakeGraph):
    def __init__(self, work, device):
        out_of_memory()


NO_MEMORY = "out of memory with a graph: CUDA out of memory. Tried to allocate 20.00 GiB."


@pytest.mark.parametrize("where", ["launching", "capturing", "judging"])
def test_out_of_memory_on_the_way_to_a_graph_is_a_refusal(policy, where):
    def make(mode):
        chosen = policy(mode, eager=3e-3, replay=1e-3, graph=TooLarge if where == "capturing" else FakeGraph)
        chosen.graphs["device"] = FakeGraph(lambda: None, None)
        return chosen

    work = out_of_memory if where == "launching" else lambda: None
    judge = out_of_memory if where == "judging" else no_objection
    chosen = make("auto")
    assert chosen.consider("host", work, forces, judge) is None
    assert (chosen.graphs, chosen.why) == ({}, NO_MEMORY)
    assert not chosen.due("host", 4)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        make("graph").consider("host", work, forces, judge)


def test_launches_are_timed_before_a_graph_takes_its_memory(policy):
    events = []

    class Noted(FakeGraph):
        def __init__(self, work, device):
            events.append("capture")

    chosen = policy("auto", eager=3e-3, replay=1e-3, graph=Noted)
    chosen.consider("host", lambda: events.append("launch"), lambda: events.append("forces") or forces(), no_objection)
    assert events == ["launch", "forces", "capture"]  # the clock is made up and launches nothing


def test_out_of_memory_beside_graphs_gives_them_up(policy):
    chosen = policy("auto", eager=3e-3, replay=1e-3)
    error = torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
    assert not chosen.give_up(error)
    chosen.consider("host", lambda: None, forces, no_objection)
    assert chosen.give_up(error)
    assert (chosen.graphs, chosen.refused, chosen.why) == ({}, True, NO_MEMORY)
    insisting = policy("graph", eager=3e-3, replay=1e-3)
    insisting.consider("host", lambda: None, forces, no_objection)
    assert not insisting.give_up(error)
    assert list(insisting.graphs) == ["host"]


def test_all_graphs_are_recorded_again(policy):
    chosen, calls = policy("graph", eager=3e-3, replay=1e-3), []
    chosen.consider("host", lambda: None, forces, no_objection)
    old = chosen.graphs["host"]
    chosen.record_again(chosen.drop(), lambda kind: lambda: calls.append(kind))
    assert calls == ["host"]
    assert chosen.graphs["host"] is not old


# -- audits --------------------------------------------------------------------------------------------------------


def test_an_audit_finds_wrong_forces(trained, ethanol, device):
    step = CapturedStep(trained(device), System.from_ase(ethanol), mode="eager", audit_every=3)
    spoil(step)
    step(ethanol.positions)
    step(ethanol.positions)
    message = r"the audit of evaluation 3: its forces .* by 1.0e-02 \(relative; at most 1e-04 is allowed\)"
    with pytest.raises(AuditError, match=message):
        step(ethanol.positions)
    step(ethanol.positions)


def test_an_audit_passes_and_reports_what_it_found(trained, crystal, device):
    step = CapturedStep(trained(device), System.from_ase(crystal), audit_every=2)
    step(crystal.positions)
    assert step.error is None
    step(crystal.positions)
    assert 0 < step.error < 1e-5


@pytest.mark.gpu
def test_a_graph_with_wrong_forces_is_refused(trained, ethanol, caplog, graphs_pay):
    insisting = CapturedStep(trained("cuda"), System.from_ase(ethanol), mode="graph")
    spoil(insisting)
    with pytest.raises(
        GraphRefused, match=r"the graph was refused: its forces differ from the exact model's by 1.0e-02"
    ):
        insisting(ethanol.positions)
    choosing = CapturedStep(trained("cuda"), System.from_ase(ethanol))
    spoil(choosing)
    with caplog.at_level(logging.WARNING):
        for _ in range(4):
            choosing(ethanol.positions)
    assert choosing.mode == "eager"
    assert "its forces differ from the exact model's by 1.0e-02" in choosing.why
    assert len(caplog.records) == 1


# -- precision -----------------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_float64_is_captured_too(trained, crystal):
    step = CapturedStep(trained("cuda", torch.float64), System.from_ase(crystal), mode="graph", stress=True)
    step(crystal.positions)
    report = step.report()
    assert (report.mode, report.engine, report.table_error) == ("graph", "exact", 0.0)
    assert report.error < 1e-11


# -- memory --------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_memory_comes_back_when_steps_are_deleted(trained, crystal, dtype):
    potential, atoms = trained("cuda", dtype), crystal.repeat(4)

    def use():
        step = CapturedStep(potential, System.from_ase(atoms), mode="graph", stress=True)
        step(atoms.positions)
        step(torch.tensor(atoms.positions, device="cuda"))
        assert len(step.policy.graphs) == 2
        return step.memory_bytes()

    def taken():
        gc.collect()
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()

    assert use() > 0  # tables and compiled kernels stay with the potential and the process
    before = taken()
    for _ in range(4):
        use()
    assert taken() == before


def exhausted(*_, **__):
    raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nAnd a second line.")


OUT_OF_MEMORY = (
    r"a step of 9 atoms needs more memory than the GPU has: 3.0 GiB were allocated and 1.5 of 8.0 GiB free: "
    r"CUDA out of memory. Tried to allocate 20.00 GiB. Use float32 instead of float64, a smaller skin"
)


@pytest.fixture
def small_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (3 * 2**29, 2**33))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda *_: 3 * 2**30)


@pytest.mark.usefixtures("small_gpu")
def test_out_of_memory_says_what_was_needed(trained, ethanol, device, monkeypatch):
    monkeypatch.setattr(EdgeSearch, "allocate", exhausted)
    with pytest.raises(OutOfDeviceMemory, match=OUT_OF_MEMORY) as caught:
        CapturedStep(trained(device), System.from_ase(ethanol))
    assert isinstance(caught.value.__cause__, torch.cuda.OutOfMemoryError)
    assert "second line" not in str(caught.value)


@pytest.mark.usefixtures("small_gpu")
def test_out_of_memory_in_an_evaluation(trained, ethanol, device, monkeypatch):
    step = CapturedStep(trained(device), System.from_ase(ethanol), mode="eager")
    through_the_engine(step)
    wanted = step(ethanol.positions).forces
    with monkeypatch.context() as patch:
        patch.setattr(through_the_engine(step), "run", exhausted)
        with pytest.raises(OutOfDeviceMemory, match=OUT_OF_MEMORY):
            step(ethanol.positions)
    np.testing.assert_array_equal(step(ethanol.positions).forces, wanted)


class Recorded:
    """Replaces a graph: runs the recorded work, whose buffers must still exist at a replay."""

    seconds, num_bytes, num_nodes = 0.5, 0, 3

    def __init__(self, step):
        self.step, self.search = step, step.search._search

    def replay(self):
        assert self.search is self.step.search._search, "a graph was replayed over buffers that are gone"
        self.step._launch("host")


@pytest.mark.usefixtures("small_gpu")
@pytest.mark.parametrize("failing", ["the search", "the engine"])
def test_out_of_memory_while_the_list_grows_leaves_no_old_graph(trained, failing, monkeypatch):
    grid = np.array([(i, j, k) for i in range(3) for j in range(3) for k in range(3)], dtype=float)
    loose, tight = 4.0 * grid, 1.6 * grid
    step = CapturedStep(trained("cpu"), System.create(loose, [6] * 27))
    wanted = [CapturedStep(trained("cpu"), System.create(x, [6] * 27))(x).forces for x in (loose, tight)]
    step(loose)
    step.policy.graphs["host"] = Recorded(step)
    with monkeypatch.context() as patch:
        patch.setattr(*((step.search, "grow") if failing == "the search" else (step.engine, "reserve")), exhausted)
        with pytest.raises(OutOfDeviceMemory, match="a step of 27 atoms needs more memory than the GPU has"):
            step(tight)
    assert not step.policy.graphs
    for positions, forces in zip((loose, tight), wanted, strict=True):
        np.testing.assert_allclose(step(positions).forces, forces, atol=1e-5)


@pytest.mark.usefixtures("small_gpu")
def test_out_of_memory_beside_a_graph_is_done_again_without_it(trained, ethanol, monkeypatch):
    step = CapturedStep(trained("cpu"), System.from_ase(ethanol))
    wanted = step(ethanol.positions).forces
    graph = Recorded(step)
    step.policy.graphs["host"] = graph
    monkeypatch.setattr(graph, "replay", exhausted)
    np.testing.assert_array_equal(step(ethanol.positions).forces, wanted)
    assert (step.mode, step.why) == ("eager", NO_MEMORY)


@pytest.mark.usefixtures("small_gpu")
def test_a_fall_back_that_fails_leaves_no_wrong_engine_in_use(trained, ethanol, monkeypatch):
    step = CapturedStep(trained("cpu"), System.from_ase(ethanol))
    wanted = step(ethanol.positions).forces
    spoil(step)
    step.audit_owed = True
    with monkeypatch.context() as patch:
        patch.setattr(change, "exact_engine_for", exhausted)
        for _ in range(2):
            with pytest.raises(OutOfDeviceMemory):
                step(ethanol.positions)
    np.testing.assert_allclose(step(ethanol.positions).forces, wanted, atol=1e-5)
    assert step.report().engine == "exact"


@pytest.mark.usefixtures("small_gpu")
def test_an_assignment_without_memory_is_refused_until_one_succeeds(trained, ethanol, monkeypatch):
    other = ethanol.copy()
    other.numbers[0] = 7
    step = CapturedStep(trained("cpu"), System.from_ase(ethanol))
    wanted = CapturedStep(trained("cpu"), System.from_ase(other))(other.positions)
    with monkeypatch.context() as patch:
        patch.setattr(EdgeSearch, "assign", exhausted)
        with pytest.raises(OutOfDeviceMemory, match=OUT_OF_MEMORY):
            step.assign(System.from_ase(other))
    for use in (lambda: step(other.positions), step.capture, step.capture_energy):
        with pytest.raises(RuntimeError, match="the last assign did not finish: call assign again"):
            use()
    step.assign(System.from_ase(other))
    np.testing.assert_array_equal(step(other.positions).forces, wanted.forces)


def test_memory_of_calls_that_failed_is_not_kept_by_the_error(small_gpu):
    class Large:
        pass

    def fail():
        large = Large()
        kept.append(weakref.ref(large))
        exhausted()

    kept = []
    batch = Batch.of(System.create(np.zeros((1, 3)), [1]))
    with pytest.raises(OutOfDeviceMemory), memory_explained(batch, torch.device("cpu")):
        fail()
    assert kept[0]() is None


# -- beside other threads, and with little memory ------------------------------------------------------------------


@pytest.mark.gpu
def test_captures_and_other_threads_do_not_disturb_each_other(trained, ethanol):
    """Other threads poll events, allocate, copy from pinned memory and capture steps at the same time."""
    potential, stop, errors = trained("cuda"), threading.Event(), []
    wanted = CapturedStep(potential, System.from_ase(ethanol), mode="eager")(ethanol.positions).forces

    def noted(work):
        def run():
            try:
                while not stop.is_set():
                    work()
            except BaseException as error:
                errors.append(error)

        return threading.Thread(target=run)

    def poll():
        event = torch.cuda.Event()
        event.record(stream)
        while not event.query():
            pass

    def allocate():
        with torch.cuda.stream(stream):
            torch.empty(3_000_000, pin_memory=True).cuda(non_blocking=True).sum().item()

    def capture():
        step = CapturedStep(potential, System.from_ase(ethanol), mode="graph")
        for _ in range(3):
            np.testing.assert_allclose(step(ethanol.positions).forces, wanted, atol=1e-4)

    stream = torch.cuda.Stream()
    threads = [noted(work) for work in (poll, allocate, capture)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            capture()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert errors == []


@pytest.mark.gpu
def test_a_failed_recording_leaves_torch_as_it_was():
    stream = torch.cuda.Stream()
    before = torch.cuda.current_stream()

    def reading():
        return torch.ones(3, device="cuda").sum().item()

    for _ in range(2):
        with pytest.raises(RuntimeError):
            record(reading, stream)
        assert torch.cuda.current_stream() == before
        torch.cuda.empty_cache()  # which torch refuses while it takes a recording to be under way
    graph = record(lambda: torch.ones(3, device="cuda"), stream)
    graph.instantiate()
    graph.replay()


@pytest.mark.gpu
def test_a_step_that_has_no_room_for_a_graph_stays_usable(trained, crystal):
    """If an evaluation takes more than half the memory, a graph with its own memory does not fit."""
    potential, atoms = trained("cuda", torch.float64), crystal.repeat(6)
    step = CapturedStep(potential, System.from_ase(atoms), mode="auto")
    gc.collect()
    torch.cuda.empty_cache()
    held = torch.cuda.memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    wanted = step(atoms.positions).forces
    needed = torch.cuda.max_memory_reserved() - held
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(min(1.0, (held + 1.3 * needed) / total))
    try:
        for _ in range(6):
            np.testing.assert_allclose(step(atoms.positions).forces, wanted, atol=1e-9)
            np.testing.assert_allclose(
                step(torch.tensor(atoms.positions, device="cuda")).forces.cpu(), wanted, atol=1e-9
            )
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
