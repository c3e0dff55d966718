"""The C++ force on OpenMM's platforms of the CPU, with springs in NumPy instead of a potential."""

import copy
import gc
import shutil
import subprocess
import threading

import forked_programs
import numpy as np
import pytest

openmm = pytest.importorskip("openmm", reason="needs OpenMM")

from torchmdx.openmm.native import build, native  # noqa: E402
from torchmdx.structures.units import KJ_PER_MOL, NANOMETER  # noqa: E402

# Known on its own, not through the plugin: a skip must not hide a plugin that no longer compiles.
pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="needs a C++ compiler")

PLATFORMS = ("Reference", "CPU")
STIFFNESS, PRESSURE = 0.37, 0.0021  # eV/Å², eV/Å³
ATOMS = (4, 1, 2)
POSITIONS = np.random.default_rng(0).normal(size=(5, 3))  # nm
REFERENCE = '{"file": "a <b> & \\"c\\" Å", "in_memory": 0}'
BOX = np.array([[2.1, 0.0, 0.0], [0.3, 2.2, 0.0], [-0.4, 0.5, 2.6]])  # nm


class Springs:
    """Energy of atoms tied to the origin, by an atom's place in the force, and of the cell's volume."""

    def __init__(self, num_atoms: int, closed: list["Springs"]) -> None:
        self.num_atoms, self.closed = num_atoms, closed
        self.weights = STIFFNESS * (1.0 + np.arange(num_atoms))[:, None]
        self.cells: list[np.ndarray | None] = []

    def evaluate(self, positions, cell, with_forces=True):
        self.cells.append(None if cell is None else cell.copy())
        volume = 0.0 if cell is None else abs(np.linalg.det(cell))
        return float((self.weights * positions**2).sum()) / 2 + PRESSURE * volume, -self.weights * positions

    def close(self) -> None:
        self.closed.append(self)


class Maker:
    """Opens Springs and remembers them."""

    def __init__(self, num_atoms: int = len(ATOMS), session: type = Springs) -> None:
        self.num_atoms, self.session = num_atoms, session
        self.opened: list[Springs] = []
        self.closed: list[Springs] = []
        self.devices: list[int | None] = []

    def open(self, device):
        self.devices.append(device)
        self.opened.append(self.session(self.num_atoms, self.closed))
        return self.opened[-1]


def expected(positions=POSITIONS, box=None, atoms=ATOMS) -> tuple[float, np.ndarray]:
    """kJ/mol and kJ/mol/nm, written down in OpenMM's units."""
    weights = STIFFNESS / KJ_PER_MOL * NANOMETER**2 * (1.0 + np.arange(len(atoms)))[:, None]
    forces = np.zeros_like(positions)
    forces[list(atoms)] = -weights * positions[list(atoms)]
    energy = 0.5 * float((weights * positions[list(atoms)] ** 2).sum())
    volume = 0.0 if box is None else abs(np.linalg.det(box))
    return energy + PRESSURE / KJ_PER_MOL * NANOMETER**3 * volume, forces


def make_system(provider, num_particles=5, *, atoms=ATOMS, periodic=False, scale=None, reference="springs"):
    system = openmm.System()
    for _ in range(num_particles):
        system.addParticle(12.0)
    options = dict(atoms=atoms, periodic=periodic, scale_parameter=scale, reference=reference, cuda=False)
    return system, native.add_force(system, provider, **options)


def context_of(system, platform="Reference", positions=POSITIONS):
    context = openmm.Context(system, openmm.VerletIntegrator(1e-4), openmm.Platform.getPlatformByName(platform))
    context.setPositions(positions)
    return context


def found(context, **options) -> tuple[float, np.ndarray]:
    state = context.getState(energy=True, forces=True, **options)
    return state.getPotentialEnergy()._value, np.array(state.getForces(asNumpy=True)._value)


def assert_same(got, wanted, tolerance=1e-12) -> None:
    assert got[0] == pytest.approx(wanted[0], rel=tolerance)
    np.testing.assert_allclose(got[1], wanted[1], rtol=tolerance, atol=tolerance)


@pytest.fixture
def restored(monkeypatch):
    """References that were read back; each makes a Maker."""
    seen = []

    def restore(text):
        seen.append((text, Maker()))
        return seen[-1][1]

    monkeypatch.setattr(native, "_restorers", [])
    native.restore_with(restore)
    return seen


@pytest.mark.parametrize("platform", PLATFORMS)
def test_energy_and_forces_of_some_atoms_in_their_order(platform):
    assert native.unavailable(cuda=False) is None
    maker = Maker()
    context = context_of(make_system(maker)[0], platform)
    assert_same(found(context), expected())
    assert maker.devices == [None]
    context.setPositions(POSITIONS[::-1])
    assert_same(found(context), expected(POSITIONS[::-1]))


@pytest.mark.parametrize("platform", PLATFORMS)
def test_no_atoms_named_are_all_atoms_and_forces_add_to_others(platform):
    system, _ = make_system(Maker(5), atoms=None)
    other = openmm.CustomExternalForce("3*x")
    other.addParticle(1, [])
    system.addForce(other)
    energy, forces = expected(atoms=range(5))
    forces[1, 0] -= 3
    assert_same(found(context_of(system, platform)), (energy + 3 * POSITIONS[1, 0], forces))


@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_box_is_passed_as_it_is_now(platform):
    maker = Maker()
    system, force = make_system(maker, periodic=True)
    assert force.usesPeriodicBoundaryConditions()
    assert system.usesPeriodicBoundaryConditions()
    system.setDefaultPeriodicBoxVectors(*BOX)
    context = context_of(system, platform)
    assert_same(found(context), expected(box=BOX))
    context.setPeriodicBoxVectors(*(1.1 * BOX))
    assert_same(found(context), expected(box=1.1 * BOX))
    np.testing.assert_allclose(maker.opened[0].cells[0], BOX * NANOMETER, rtol=1e-14)


def test_without_periodicity_there_is_no_box_and_unless_asked_for_no_parameter():
    maker = Maker()
    system, force = make_system(maker)
    context = context_of(system)
    found(context)
    assert maker.opened[0].cells == [None]
    assert not force.usesPeriodicBoundaryConditions()
    assert list(context.getParameters()) == []


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_global_parameter_scales_energy_and_forces(platform):
    context = context_of(make_system(Maker(), scale="lambda")[0], platform)
    energy, forces = expected()
    assert_same(found(context), (energy, forces))
    for scale in (0.25, 0.0, -2.0):
        context.setParameter("lambda", scale)
        assert_same(found(context), (scale * energy, scale * forces))


def test_it_is_evaluated_only_with_its_group():
    maker = Maker()
    system, force = make_system(maker)
    force.setForceGroup(3)
    context = context_of(system)
    assert found(context, groups={0})[0] == 0.0
    assert maker.opened[0].cells == []
    assert_same(found(context, groups={3}), expected())


def test_integration_follows_the_forces():
    """Verlet, written down: each step adds forces to half-step velocities, and those to positions."""
    context = context_of(make_system(Maker())[0])
    positions, velocities, step = POSITIONS.copy(), np.zeros((5, 3)), 1e-4
    for _ in range(20):
        velocities += step * expected(positions)[1] / 12.0
        positions += step * velocities
    context.getIntegrator().step(20)
    result = context.getState(positions=True).getPositions(asNumpy=True)._value
    np.testing.assert_allclose(result, positions, rtol=1e-11)


def test_the_minimizer_finds_the_minimum():
    context = context_of(make_system(Maker())[0])
    openmm.LocalEnergyMinimizer.minimize(context, 1e-3)
    result = context.getState(positions=True).getPositions(asNumpy=True)._value
    assert np.abs(result[list(ATOMS)]).max() < 1e-5
    np.testing.assert_array_equal(result[[0, 3]], POSITIONS[[0, 3]])


def test_contexts_have_sessions_that_end_with_them_in_any_order():
    maker = Maker()
    system, _ = make_system(maker)
    first, second = context_of(system), context_of(system, "CPU", 2 * POSITIONS)
    assert_same(found(first), expected())
    assert_same(found(second), expected(2 * POSITIONS))
    assert len(maker.opened) == 2
    del system, first
    gc.collect()
    assert maker.closed == maker.opened[:1]
    assert_same(found(second), expected(2 * POSITIONS))
    del second
    gc.collect()
    assert maker.closed == maker.opened


def test_contexts_in_threads_do_not_disturb_each_other():
    system, _ = make_system(Maker())
    contexts = [context_of(system, positions=(k + 1) * POSITIONS) for k in range(3)]
    results: dict[int, list] = {k: [] for k in range(3)}

    def work(k: int) -> None:
        results[k] += [found(contexts[k]) for _ in range(30)]

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k in range(3):
        assert len(results[k]) == 30
        for result in results[k]:
            assert_same(result, expected((k + 1) * POSITIONS))


def failing(error: BaseException) -> Maker:
    class Failing(Springs):
        def evaluate(self, positions, cell, with_forces=True):
            raise error

    return Maker(session=Failing)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("cutoff must be > 0 Å, got -1.0"), "cutoff must be > 0 Å, got -1.0"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (ValueError("x" * 10_000), "x{4000,4095}"),
        (ValueError("xx" + "Å" * 10_000), "xxÅ{2000,2047}"),  # cut between characters
    ],
)
def test_errors_of_python_arrive_as_openmms_with_their_text(error, text):
    context = context_of(make_system(failing(error))[0])
    for _ in range(2):
        with pytest.raises(openmm.OpenMMException, match=f"^{text}$"):
            found(context)


INTERRUPTED = """
import ctypes, os, signal, threading, time
import openmm
from torchmdx.openmm.native import native
class Session:
    num_atoms = 1
    def evaluate(self, positions, cell, with_forces=True): return 0.5 * float((positions**2).sum()), -positions
    def close(self): pass
class Provider:
    def open(self, device): return Session()
system = openmm.System()
system.addParticle(1.0)
native.add_force(system, Provider(), atoms=None, periodic=False, scale_parameter=None, reference="", cuda=False)
context = openmm.Context(system, openmm.VerletIntegrator(1e-5), openmm.Platform.getPlatformByName("Reference"))
context.setPositions([openmm.Vec3(1, 0, 0)])
stopped = threading.Event()
def interrupt():
    # ctypes ignores an interrupt between the answer and the return of a callback; as a user would, again 5 s later.
    pause = 0.5
    while not stopped.wait(pause):
        os.kill(os.getpid(), signal.SIGINT)
        pause = 5
threading.Thread(target=interrupt, daemon=True).start()
end = time.time() + 60
try:
    while time.time() < end:
        context.getIntegrator().step(100_000)
except openmm.OpenMMException as error:
    stopped.set()
    print(error)
except KeyboardInterrupt:  # between two calls of step
    stopped.set()
    print("KeyboardInterrupt")
"""


@pytest.mark.nightly
def test_an_interrupted_evaluation_stops_the_run():
    """Python raises KeyboardInterrupt before the first line of a callback, where nothing can catch it."""
    done = subprocess.run([*forked_programs.python(), "-c", INTERRUPTED], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stdout in ("Python was interrupted before it answered\n", "KeyboardInterrupt\n")


def test_a_session_that_cannot_be_opened_says_why():
    class Closed(Springs):
        def __init__(self, num_atoms, closed):
            raise RuntimeError("no session today")

    with pytest.raises(openmm.OpenMMException, match="^no session today$"):
        context_of(make_system(Maker(session=Closed))[0])


@pytest.mark.parametrize("atoms", [(0, 5), (-1,)])
def test_particles_that_are_not_there_are_refused(atoms):
    wrong = next(i for i in atoms if not 0 <= i < 5)
    message = f"TorchmdxForce: particles must be between 0 and 4, got {wrong}"
    with pytest.raises(openmm.OpenMMException, match=message):
        context_of(make_system(Maker(), atoms=atoms)[0])


def test_a_system_survives_xml(restored):
    maker = Maker()
    system, force = make_system(maker, periodic=True, scale="s", reference=REFERENCE)
    force.setForceGroup(7)
    force.setName("ligand")
    system.setDefaultPeriodicBoxVectors(*BOX)
    text = openmm.XmlSerializer.serialize(system)
    again = openmm.XmlSerializer.deserialize(text)
    assert [seen for seen, _ in restored] == [REFERENCE]
    assert openmm.XmlSerializer.serialize(again) == text
    assert (again.getForce(0).getName(), again.getForce(0).getForceGroup()) == ("ligand", 7)
    context = context_of(again)
    context.setParameter("s", 0.5)
    energy, forces = expected(box=BOX)
    assert_same(found(context), (0.5 * energy, 0.5 * forces))
    assert len(restored[0][1].opened) == 1
    assert maker.opened == []


def test_systems_and_forces_can_be_copied(restored):
    system, force = make_system(Maker())
    twin, lone = copy.deepcopy(system), copy.deepcopy(force)
    del system
    gc.collect()
    assert [f.getName() for f in twin.getForces()] == ["TorchmdxForce"]
    twin.addForce(lone)
    energy, forces = expected()
    assert_same(found(context_of(twin)), (2 * energy, 2 * forces))
    assert [text for text, _ in restored] == ["springs", "springs"]


def test_it_can_be_a_collective_variable(restored):
    system, force = make_system(Maker())
    outer = openmm.CustomCVForce("2*e")
    outer.addCollectiveVariable("e", copy.deepcopy(force))
    system.removeForce(0)
    system.addForce(outer)
    energy, forces = expected()
    assert_same(found(context_of(system)), (2 * energy, 2 * forces))


def test_files_that_cannot_be_restored_say_why(restored, monkeypatch):
    text = openmm.XmlSerializer.serialize(make_system(Maker())[0])
    newer = text.replace('type="TorchmdxForce" version="1"', 'type="TorchmdxForce" version="2"')
    with pytest.raises(openmm.OpenMMException, match="this torchmdx reads version 1 of TorchmdxForce, got 2"):
        openmm.XmlSerializer.deserialize(newer)

    def refuse(text):
        raise ValueError(f"the checkpoint of {text!r} has changed")

    native.restore_with(refuse)
    with pytest.raises(openmm.OpenMMException, match="the checkpoint of 'springs' has changed"):
        openmm.XmlSerializer.deserialize(text)


def test_a_provider_goes_with_the_last_force_that_uses_it(restored):
    before = set(native._providers)
    system, _ = make_system(Maker())
    twin = copy.deepcopy(system)
    assert len(set(native._providers) - before) == 2
    context = context_of(twin)
    del system
    gc.collect()
    assert len(set(native._providers) - before) == 1
    assert_same(found(context), expected())
    del context, twin
    gc.collect()
    assert set(native._providers) <= before


@pytest.mark.parametrize("reference", ['{"a": "b"}', "b&", '"', "", "&x", "Å&c"])
def test_references_survive_a_parser_that_loses_characters(restored, reference):
    openmm.XmlSerializer.deserialize(openmm.XmlSerializer.serialize(make_system(Maker(), reference=reference)[0]))
    assert [text for text, _ in restored] == [reference]


def test_what_cannot_be_compiled_is_told_in_a_line(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TORCHMDX_CACHE", str(tmp_path / "file"))
    with pytest.raises(build.BuildError, match="file cannot keep compiled code: "):
        build.compiled("x", ["force.cpp"], [], [])
    monkeypatch.setenv("TORCHMDX_CACHE", str(tmp_path / "new"))
    with pytest.raises(build.BuildError, match=r"could not compile force\.cpp: .*error"):
        build.compiled("x", ["force.cpp"], ["-DMESSAGE=?"], [])
    assert list((tmp_path / "new").iterdir()) == []  # nothing half made is kept
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(build.BuildError, match=r"^no compiler found \(c\+\+, g\+\+ or \$CXX\)$"):
        build.compiled("x", ["force.cpp"], [], [])


def test_a_shared_cache_serves_machines_without_a_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHMDX_CACHE", str(tmp_path))
    source = ["one_context.c"], ["-std=gnu11"], ["-ldl", "-lpthread"]
    build.compiled("one-context", *source)
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert build.compiled("one-context", *source) is not None
    with pytest.raises(build.BuildError, match="no compiler found"):
        build.compiled("another", *source)


SHUTDOWN = """
import openmm
from torchmdx.openmm.native import native
class Session:
    num_atoms = 1
    def evaluate(self, positions, cell, with_forces=True): return 1.0, 0 * positions
    def close(self): print("closed")
class Provider:
    def open(self, device): return Session()
system = openmm.System()
system.addParticle(1.0)
native.add_force(system, Provider(), atoms=None, periodic=False, scale_parameter=None, reference="", cuda=False)
context = openmm.Context(system, openmm.VerletIntegrator(1e-3), openmm.Platform.getPlatformByName("Reference"))
context.setPositions([openmm.Vec3(0, 0, 0)])
context.getState(energy=True)
keep = [context]
keep.append(keep)  # nothing frees it before the interpreter is gone
print("end")
"""


@pytest.mark.nightly
def test_contexts_may_outlive_the_interpreter():
    done = subprocess.run([*forked_programs.python(), "-c", SHUTDOWN], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")
