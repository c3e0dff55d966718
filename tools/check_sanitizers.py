"""Runs C and CUDA C++ under sanitizers, on the CPU: check_sanitizers.py [STRUCTURES].

Compiles the libraries of torchmdx/runtime/c_sources.py with AddressSanitizer and UndefinedBehaviorSanitizer, and
starts itself again with their library preloaded. Then random structures of 0 to 60 atoms, in random and collapsed
cells of any periodicity, are searched and evaluated, with every instruction set and several thread counts. Forces are
compared between instruction sets, and lists with those of the search in torch. At the end, tests of kernels in CUDA C++
run in emulation with AddressSanitizer, which finds accesses outside of tensors. Needs gcc and g++.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
# With -O1 and -g the compilation takes four times as long as everything else.
FLAGS = ("-g1", "-Og", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
CONFIGS = (
    dict(num_channels=16, num_radial=8, num_layers=2),
    dict(num_channels=40, num_radial=6, num_layers=1, group="SO(3)", num_head_layers=2),
    dict(num_channels=10, num_radial=4, num_layers=0, activation="ssp"),
    dict(num_channels=24, num_radial=4, num_layers=2, messages="target"),
    dict(num_channels=24, num_radial=3, num_layers=1, head="gated", num_head_layers=2, readout_activation=False),
)
CHARGED = (
    dict(num_channels=16, num_radial=6, num_layers=2, num_charges=3),
    dict(num_channels=24, num_radial=4, num_layers=1, num_charges=17, group="SO(3)", activation="tanh"),
    dict(num_channels=10, num_radial=4, num_layers=0, num_charges=2),
)

# Files of tests that run kernels in emulation (tests/emulated.py), and which of their tests.
EMULATED = ("tests/engines/gpu/test_row_messages.py", "tests/engines/gpu/test_edge_maps.py")
CHOSEN = "emulated or not_a_number or order"


def compile_all(folder: Path) -> None:
    """The libraries with sanitizers, FOLDER/NAME.so."""
    from torchmdx.runtime.c_sources import LIBRARIES

    for name, (source, *_) in LIBRARIES.items():
        base = ("-fPIC", "-shared", "-std=gnu11", "-ffp-contract=fast", "-fopenmp-simd", "-w")
        path = ROOT / "torchmdx" / source
        subprocess.run(["gcc", *FLAGS, *base, str(path), "-o", str(folder / f"{name}.so"), "-lm"], check=True)


def preload(*command: str, **variables: str) -> int:
    """Runs Python with the library of AddressSanitizer; returns its exit status."""
    library = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    environment = {
        **os.environ,
        "LD_PRELOAD": library.stdout.strip(),
        "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0",  # Python frees little; emulations swap stacks
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONPATH": str(ROOT),
        **variables,
    }
    return subprocess.run([sys.executable, *command], cwd=ROOT, env=environment, check=False).returncode


def emulate() -> int:
    """Runs the tests of kernels in emulation; returns the exit status."""
    flags = "-O1 -g1 -fno-omit-frame-pointer -fsanitize=address"
    options = ["-q", "-n0", "-m", "not gpu and not interpreter", "-k", CHOSEN]
    return preload("-m", "pytest", *options, *EMULATED, EMULATED_FLAGS=flags, OMP_NUM_THREADS="1")


def run(folder: Path, count: int) -> None:
    """Searches and evaluates random structures with the libraries of the folder."""
    from torchmdx.runtime import c_library
    from torchmdx.runtime.c_sources import LIBRARIES

    loaded = {name: ctypes.CDLL(str(folder / f"{name}.so")) for name in LIBRARIES}
    c_library._found = lambda name: (loaded[name], "compiled with sanitizers")  # type: ignore[assignment]
    import numpy as np
    import torch

    from torchmdx import Batch, EdgeSearch, Potential, System, TensorNet2Config, TensorNetConfig
    from torchmdx.engines.cpu import coulomb, engine
    from torchmdx.engines.cpu.engine import INSTRUCTIONS, CompiledTensorNet
    from torchmdx.models.priors.coulomb import Coulomb, CoulombConfig

    torch.manual_seed(0)
    configs = [TensorNetConfig(cutoff=4.0, max_z=20, **config) for config in CONFIGS]
    configs += [TensorNet2Config(cutoff=4.0, max_z=20, **config) for config in CHARGED]
    potentials = [Potential(config).to(dtype=dtype) for config in configs for dtype in (torch.float32, torch.float64)]
    coulombs = [Coulomb(CoulombConfig(cutoff=3.5, cut_in_vacuum=cut), 3) for cut in (False, True)]
    evaluated = 0
    for seed in range(count):
        random = np.random.default_rng(seed)
        torch.set_num_threads(int(random.integers(1, 4)))
        batch = Batch.from_systems([structure(random, System.create) for _ in range(random.integers(1, 4))])
        potential = potentials[seed % len(potentials)]
        try:
            edges = EdgeSearch(4.0).allocate(batch)
            plain = EdgeSearch(4.0, backend="brute_force").allocate(batch)
        except ValueError:  # a cell that no search can count
            continue
        if int(edges.num_edges) != int(plain.num_edges):
            raise SystemExit(f"structure {seed}: {int(edges.num_edges)} edges in C, {int(plain.num_edges)} in torch")
        results = []
        engine.MOST_KEPT_BYTES = 2**30 * (seed // len(potentials) % 2)
        # The charges of every second TensorNet2 are pulled at, as by a prior.
        pull_of = torch.ones_like if potential.predicts_charges and seed % 8 < 4 else None
        for name in INSTRUCTIONS:
            size = potential, batch.num_atoms, batch.num_systems
            network = CompiledTensorNet(*size, name, charges=pull_of is not None)
            geometry = batch, batch.positions, batch.cell, edges
            found = network.run(*geometry, forces=True, virial=True, pull_of=pull_of)
            results.append(found.forces.double().nan_to_num())
        coulomb.evaluate(coulombs[seed % 2], batch, edges, torch.ones(batch.num_atoms, 3))
        largest = 1 + max(float(r.abs().max()) if len(r) else 0.0 for r in results)
        worst = max(float((r - results[0]).norm()) for r in results)
        if worst > 1e-2 * largest:
            raise SystemExit(
                f"structure {seed}: forces of instruction sets differ by {worst}, the largest is {largest}"
            )
        evaluated += 1
    print(f"check_sanitizers: {evaluated} of {count} structures evaluated, nothing found")


def structure(random: object, create: Callable[..., object]) -> object:
    """A random structure: 0 to 60 atoms, any periodicity, cells from collapsed to huge."""
    number = int(random.integers(0, 61))  # type: ignore[attr-defined]
    width = float(random.choice([0.7, 3.0, 8.0, 20.0, 1000.0]))  # type: ignore[attr-defined]
    number = min(number, 6) if width < 1 else number
    cell = width * (0.3 * random.normal(size=(3, 3)) + [[1, 0, 0], [0, 1, 0], [0, 0, 1]])  # type: ignore[attr-defined]
    positions = random.uniform(-width, width, (number, 3))  # type: ignore[attr-defined]
    numbers = random.integers(1, 21, number)  # type: ignore[attr-defined]
    return create(positions, numbers, cell, random.random(3) < 0.5)  # type: ignore[attr-defined]


def main() -> int:
    """Compiles, preloads, or runs; returns the exit status."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 96
    if made := os.environ.get("SANITIZED"):
        run(Path(made), count)
        return 0
    if shutil.which("gcc") is None:
        print("check_sanitizers: needs gcc", file=sys.stderr)
        return 1
    sys.path.insert(0, str(ROOT))
    with tempfile.TemporaryDirectory() as folder:
        compile_all(Path(folder))
        status = preload(__file__, str(count), SANITIZED=folder, OMP_NUM_THREADS="2")
    return status or emulate()


if __name__ == "__main__":
    sys.exit(main())
