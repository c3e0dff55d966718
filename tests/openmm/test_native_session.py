"""The native transport's graphs after failures, and its audits, on the CPU: stand-ins for graphs and for CUDA.

In a process of its own, where the plugin's CUDA part has taken over OpenMM's Reference platform (fake_cuda.py).
"""

import shutil
import subprocess
from pathlib import Path

import forked_programs
import pytest

openmm = pytest.importorskip("openmm", reason="needs OpenMM")
import fake_cuda  # noqa: E402

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="needs a C++ compiler")
TESTS = Path(__file__).parents[1]

PRELUDE = """
import contextlib, ctypes, gc, itertools, sys, threading, types, weakref
import numpy as np, openmm, torch
from boxes import empty_system, topology_of
from ase import Atoms
from conftest import random_potential
from torchmdx.step import capture_policy as step_policy
from torchmdx.models.ensemble import Ensemble
from torchmdx.openmm import transport_native as native_transport
from torchmdx.openmm.evaluator import ForceEvaluator
from torchmdx.openmm.settings import ForceSettings
from torchmdx.openmm.native import native
from torchmdx.structures.units import KJ_PER_MOL, NANOMETER

torch.cuda.device = lambda device: contextlib.nullcontext()
torch.cuda.synchronize = lambda device=None: None
torch.cuda.current_stream = lambda device=None: types.SimpleNamespace(synchronize=lambda: None)
addresses = itertools.count(0x1000)
alive = weakref.WeakValueDictionary()  # graphs by their address
launched = []

class Recorded:
    # In the place of torch.cuda.CUDAGraph: an address that dies with it.
    def __init__(self):
        self.address = next(addresses)
        alive[self.address] = self
    def raw_cuda_graph_exec(self):
        return self.address

class FakeGraph:
    fails = None
    def __init__(self, work, device):
        if FakeGraph.fails is not None:
            raise FakeGraph.fails
        self.graph, self.num_bytes, self.seconds, self.num_nodes = Recorded(), 0, 0.0, 1
        self.graph.work = work
step_policy.Graph = FakeGraph

class CpuEvaluator(ForceEvaluator):
    # Its steps have graphs, which run on the CPU.
    def make_step(self, positions, cell, mode=None, audit_every=None):
        self.potential = self.potential.own
        step = super().make_step(positions, cell, "eager", audit_every)
        step.policy.graphs = {kind: FakeGraph(lambda: step._launch("host"), None) for kind in ("device", "energy")}
        steps.append(weakref.ref(step))
        return step
steps = []

class Session(native_transport.GraphSession):
    def start(self, positions, cell):
        own = self.evaluator.potential
        self.evaluator.potential = Elsewhere(own)
        try:
            return super().start(positions, cell)
        finally:
            self.evaluator.potential = own

class Elsewhere:
    # A potential that says that it is on a GPU.
    def __init__(self, own):
        self.own, self.device = own, torch.device("cuda", 0)

class Provider:
    def __init__(self, evaluator):
        self.evaluator = evaluator
    def open(self, device):
        sessions.append(Session(self.evaluator, device))
        return sessions[-1]
sessions = []

@ctypes.CFUNCTYPE(None, ctypes.c_ulonglong)
def launch(address):
    launched.append(address)
    alive[address].work()  # KeyError: the graph was destroyed

library = ctypes.CDLL(sys.argv[1])
native.plugin = lambda cuda: library
native._library.cache_clear()  # importing has loaded the real one
assert native.unavailable(cuda=False) is None
library.take_over(launch)

GRID = np.array([(i, j, k) for i in range(4) for j in range(4) for k in range(3)], float)
LOOSE, DENSE = GRID * 3.2, GRID * 1.6 + np.random.default_rng(0).normal(0, 0.05, GRID.shape)

def context_of(potential, **options):
    n = len(GRID)
    inside = options.pop("inside", None)
    settings = ForceSettings((6,) * (n if inside is None else len(inside)), inside, n, 0.0, False, "float32", "auto",
                             "cpu", 0.0, options.pop("audit_every", 0), None, **options)
    evaluator = CpuEvaluator(settings, potential)
    system = openmm.System()
    for _ in range(n):
        system.addParticle(12.0)
    native.add_force(system, Provider(evaluator), atoms=settings.particles, periodic=False, scale_parameter=None,
                     reference="", cuda=False)
    context = openmm.Context(system, openmm.VerletIntegrator(1e-7), openmm.Platform.getPlatformByName("Reference"))
    return context, evaluator

def energy(context, positions):
    context.setPositions(positions / NANOMETER)
    return context.getState(energy=True, forces=True).getPotentialEnergy()._value * KJ_PER_MOL

def refused(context, positions, text):
    context.setPositions(positions / NANOMETER)
    try:
        context.getState(energy=True, forces=True)
    except openmm.OpenMMException as error:
        assert text in str(error), str(error)
        return str(error)
    raise AssertionError(f"not refused: {text}")
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return fake_cuda.harness(tmp_path_factory.mktemp("harness"))


def run(library: Path, script: str, folder: Path) -> str:
    lines = f"import sys; sys.path[:0] = [{str(TESTS)!r}, {str(TESTS / 'openmm')!r}]\n"
    command = [*forked_programs.python(), "-c", lines + PRELUDE + script, str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    # ctypes reports what a callback raises, such as a launch of a destroyed graph, and goes on.
    assert (done.returncode, "ignored" in done.stderr) == (0, False), done.stderr[-3000:]
    return done.stdout


SPREAD = """
import copy
one = random_potential(num_channels=8, num_layers=1, cutoff=3.0).float()
other = copy.deepcopy(one)
with torch.no_grad():
    for p in other.parameters(): p.mul_(1.02)
context, evaluator = context_of(Ensemble([one, other]), max_force_spread=1e-6, spread_file="uncertain.xyz")
wanted = energy(context, LOOSE)  # atoms without neighbours
old = launched[-1]
refused(context, DENSE, "the force spread of the ensemble must be at most 1e-06")  # after the list has grown
gc.collect()
assert old not in alive and evaluator.num_recoveries == 1, (old, alive, evaluator.num_recoveries)
assert len(steps) == 1
assert energy(context, LOOSE) == wanted
assert launched[-1] != old
assert len(steps) == 1  # the step is sound: no new one
print("done")
"""

LOST = """
potential = random_potential(num_channels=8, num_layers=1, cutoff=3.0).float()
context, evaluator = context_of(potential)
wanted = energy(context, LOOSE)
for failure, text in ((MemoryError("no room for a graph"), "no room for a graph"),
                      (KeyboardInterrupt(), "KeyboardInterrupt")):
    old = launched[-1]
    FakeGraph.fails = failure
    refused(context, DENSE, text)  # the list grows, the new graph cannot be recorded
    gc.collect()
    assert old not in alive
    count = len(launched)
    refused(context, DENSE, text)  # without memory there is no graph, and nothing is launched
    assert len(launched) == count
    FakeGraph.fails = None
    assert energy(context, LOOSE) == wanted
    assert launched[-1] != old
dense = energy(context, DENSE)
nan = LOOSE.copy()
nan[5, 1] = np.nan
refused(context, nan, "atom 5")
assert energy(context, DENSE) == dense
refused(context, nan, "atom 5")
context.setPositions(LOOSE / NANOMETER)
assert abs(context.getState(energy=True).getPotentialEnergy()._value * KJ_PER_MOL - wanted) < 1e-6
print("done")
"""

AUDITS = """
potential = random_potential(num_channels=8, num_layers=1, cutoff=3.0).float()
context, evaluator = context_of(potential, audit_every=3)
energy(context, DENSE)
from torchmdx.openmm import native_audit
seen, gate, judged = [], threading.Event(), native_audit.judge
def judge(*given):
    gate.wait(30)
    verdict = judged(*given)
    seen.append(verdict.reason)
    return verdict
native_audit.judge = judge
energy(context, DENSE), energy(context, DENSE)  # the third is audited
assert len(seen) == 0
energy(context, DENSE * 1.01), energy(context, DENSE * 1.02)  # neither waits for the audit
gate.set()
energy(context, DENSE)  # the sixth waits for it, and is audited
context.getState(energy=True)
sessions[-1].audits.settle()
assert seen == [None, None], seen
assert 0 < sessions[-1].step.error < 1e-5

# Results that are wrong: the forces, then the energy.
for name, text in (("forces", "its forces differ from the exact model's by"),
                   ("energy", "its energy differs from the exact model's by")):
    seen.clear()
    work = alive[launched[-1]].work
    def wrong():
        work()
        sessions[-1].step.buffers.outputs[name].mul_(1.01)
    context.getIntegrator().step(2)
    evaluations = len(launched)
    while not seen or seen[-1] is None:  # to the next audit, whose evaluation is wrong
        alive[launched[-1]].work = wrong
        try:
            context.getState(energy=True, forces=True)
        except openmm.OpenMMException as error:
            break
        done = sessions[-1].audits._pending
        if done is not None: done.result()
    else:
        count = len(launched)
        error = refused(context, DENSE, text)
        assert len(launched) == count  # stopped before the evaluation
    assert text in str(error), str(error)
    assert str(error).startswith("the audit of evaluation "), str(error)
    assert f", at step {context.getStepCount()}: " in str(error), str(error)
    alive[launched[-1]].work = work
    assert energy(context, DENSE) == energy(context, DENSE)  # one error for each failure
    sessions[-1].audits.settle()
print("done")
"""


EMBEDDED = """
from torchmdx.openmm.surroundings import Surroundings
charged = random_potential(model="tensornet2", num_channels=8, num_layers=1, cutoff=3.0).float()
inside = tuple(range(9))
surroundings = Surroundings("plain", tuple(np.random.default_rng(1).normal(0, 0.3, len(GRID) - 9)))
context, evaluator = context_of(charged, inside=inside, surroundings=surroundings)
placed = np.concatenate([DENSE[:9], LOOSE[9:] + 6.0])  # lone atoms of one element would have no charges
moved = placed.copy()
moved[20:] += 1.0
moved[3] += 0.3
for places in (placed, moved):
    found = energy(context, places)
    wanted, forces = ForceEvaluator(evaluator.settings, charged).evaluate(places, None)
    assert abs(found - wanted) < 1e-5, (found, wanted)
    shared = sessions[-1].step.outer.forces.numpy()
    assert np.abs(shared - forces).max() < 1e-5
    assert np.abs(forces[9:]).max() > 1e-4
print("done")
"""


@pytest.mark.nightly
@pytest.mark.parametrize("script", [SPREAD, LOST, AUDITS, EMBEDDED], ids=["spread", "lost", "audits", "embedded"])
def test_sessions(library, tmp_path, script):
    assert run(library, script, tmp_path) == "done\n"
