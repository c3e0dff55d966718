"""Compiles kernels for a GPU that need not be there, and prints for each: case, name, bytes of shared memory,
registers of a program, and bytes that a thread spills.

    python compile_kernels.py CAPABILITY CASE/OF ...          # cases of test_kernels_compile.EXPECTED
    python compile_kernels.py CAPABILITY --first CASE/OF ...  # of each only the first kernel that no other has

Triton's launches are replaced: they compile for the capability (80, 90, ...) and run nothing. Networks have 128
channels, or those of the environment variable CHANNELS; the most that kernels serve are 256. CHARGES: likewise, sets of
charges of a TensorNet2 (16).
"""

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

sys.path.append(str(Path(__file__).resolve().parents[3]))
sys.path.append(str(Path(__file__).resolve().parents[2]))
sys.path.append(str(Path(__file__).resolve().parent))

import compile_cases
import conftest
from uncertain import uncertain

from torchmdx import Batch, System
from torchmdx.engines.gpu import charge_buffers
from torchmdx.engines.gpu.slab_windows import SlabShape
from torchmdx.engines.gpu.tensornet import FastTensorNet
from torchmdx.engines.gpu.tensornet2 import FastTensorNet2
from torchmdx.engines.gpu.uncertainty import UncertaintyKernels
from torchmdx.engines.plan import Workload
from torchmdx.engines.plan.kernels import SLABS
from torchmdx.engines.plan.launch_sizes import Tiles
from torchmdx.neighbors.brute_force import brute_force

capability, first, cases = int(sys.argv[1]), sys.argv[2] == "--first", sys.argv[2:]


class Device:
    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", capability, 32)


driver.set_active(Device())
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
compiled, seen, before, run = {}, set(), set(), JITFunction.run


def compile_only(self, *args, grid, warmup, **options):
    if first and (compiled or self.fn.__name__ in before):
        return
    kernel = run(self, *args, grid=grid, warmup=True, **options)
    if kernel.hash not in seen:
        seen.add(kernel.hash)
        compiled.setdefault(self.fn.__name__, []).append((kernel.metadata.shared, *registers(kernel)))


def registers(kernel):
    """(registers of all threads of a program, bytes of a thread that are spilled), as the cubin says."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [str(CUOBJDUMP), "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", text))
    return int(found["REG"]) * 32 * kernel.metadata.num_warps, int(found["STACK"]) + int(found["LOCAL"])


JITFunction.run = compile_only


def step(kind):
    from torchmdx.step.buffer_kernels import launch_finish, launch_prepare
    from torchmdx.step.buffers import StepBuffers

    batch = Batch.from_systems([System.create([[0.0, 0, 0], [0, 0, 1.1]], [6, 8], cell=BOX, pbc=True)])
    edges = brute_force(batch, 3.0)
    dtype = getattr(torch, kind)
    buffers = StepBuffers(batch, dtype, stress=True, energies=True)
    launch_prepare(buffers, batch.system_index)
    launch_prepare(buffers, batch.system_index, from_host=True)
    energies, stress = torch.zeros(2, dtype=torch.float64), torch.zeros(1, 3, 3, dtype=torch.float64)
    results = (energies[:1], energies, torch.zeros(2, 3, dtype=dtype), stress)
    launch_finish(buffers, edges, *results)
    launch_finish(buffers, edges, *results, to_host=len(buffers.output))
    doubts = torch.zeros(2, dtype=torch.float64)  # of two systems; those of one are in other cases
    UncertaintyKernels(torch.eye(9), torch.zeros(2, 9), doubts, doubts).run(torch.arange(2))


def priors(kind):
    from torchmdx.engines.gpu.triton import coulomb, reciprocal
    from torchmdx.engines.gpu.triton import near_list as near_rows
    from torchmdx.models.priors.coulomb import Coulomb, CoulombConfig

    batch = Batch.from_systems([System.create([[0.0, 0, 0], [0, 0, 1.1]], [6, 8], cell=BOX, pbc=True)])
    edges = brute_force(batch, 3.0)
    switch = (1.0, 2.0) if kind == "switched" else None
    coulomb.evaluate(Coulomb(CoulombConfig(cutoff=3.0, switch=switch)), batch, edges, torch.ones(2, 1), stress=True)
    count = coulomb.COLUMNS + 1  # more partners than one program takes: their sums are in parts
    many = Batch.from_systems([System.create(torch.rand(count, 3), torch.ones(count, dtype=torch.int64))])
    coulomb.evaluate(Coulomb(CoulombConfig(), 1, 1), many, brute_force(many, 1.0), torch.ones(count, 1), stress=True)
    summed, meshed = (
        Coulomb(CoulombConfig(cutoff=5.0, accuracy=accuracy, periodic=periodic), 1, 16)
        for periodic, accuracy in (("ewald", 1e-2), ("pme", 1e-5))
    )
    charges = torch.ones(1, 2, 16)
    summed.keep_lists()
    coulomb.evaluate(summed, batch, edges, charges[0], stress=True)
    fused = ((True, 10**9), (False, 10**9), (True, 0))
    for summed, (forces, reciprocal.MOST_FUSED) in [*((summed, each) for each in fused), (meshed, fused[0])]:
        summed.keep_lists()
        direct = reciprocal.DirectReciprocal(summed, batch, 16, 16)
        vectors = summed.vectors_for(batch, charges[0], edges.overflow)
        direct.run(vectors, batch, charges, edges.overflow, forces=forces)
        results = coulomb.Found(torch.zeros(2, dtype=torch.float64), torch.zeros(2, 3), torch.zeros_like(charges), None)
        direct.add(batch, charges, results)
    near = near_rows.NearRows(2.0)
    near.capacity = 4
    near.edges(batch, edges)


def search(split):
    from torchmdx.neighbors.edges import empty_edges
    from torchmdx.neighbors.single_pass import OnePassBruteForce, OnePassCellList

    if split == "pairs":
        for length in (2.0, 9.0):
            cell = [[length, 0, 0], [0, length, 0], [0, 0, length]]
            made = System.create([[0.0, 0, 0], [0, 0, 1.1]], [6, 8], cell=cell, pbc=True, dtype=torch.float32)
            batch = Batch.from_systems([made])
            OnePassBruteForce(batch, 3.0, 0.0, empty_edges(batch, 100))._search(batch.positions, batch.cell)
        return
    OnePassCellList._sizes = lambda self: (16, 16, 1, 1, int(split))
    system = System.create([[0.0, 0, 0], [0, 0, 1.1]], [6, 8], cell=BOX, pbc=True, dtype=torch.float32)
    batch = Batch.from_systems([system])
    for skin in (0.0, 0.5):
        OnePassCellList(batch, 3.0, skin, empty_edges(batch, 100)).update(batch.positions, batch.cell)


def training(_):
    from torchmdx.engines.pairs.kernels import atom_functions, linear, pair_values, row_norm, silu

    x, w, b, nine, f = torch.ones(40, 32), torch.ones(64, 32), torch.ones(64), torch.ones(4, 9, 32), torch.ones(4, 1)
    g = linear.multiply_silu(x, w, b)[0]
    linear.multiply(x, w, b), linear.multiply(g, w, back=True), linear.in_weights(g, x, total=True)
    linear.multiply(nine, torch.ones(3, 32, 32)), linear.in_weights(nine, nine), silu.scaled_derivative(1, x, x, x)
    atom_functions.normalise(nine), atom_functions.normalise_gradient(nine, nine)
    atom_functions.normalise_second(nine, nine, nine), atom_functions.product(nine, nine, f)
    atom_functions.product_gradient(nine, nine, nine, f), atom_functions.product_second(*[nine] * 5, None)
    atom_functions.update(nine, nine, f), atom_functions.update_gradient(nine, nine, None)
    atom_functions.update_second(nine, nine, nine, f)
    row_norm.values(x, x[0], x[0], 1e-5), row_norm.first(x, x[0], x, 1e-5, True), row_norm.second(x, x[0], x, x, 1e-5)
    v, means = torch.ones(5, 3), torch.ones(16)
    values = pair_values.values(v, means, means, 3.0, True)
    pair_values.gradient(v, means, means, 3.0, *values), pair_values.change(v, means, means, 3.0, v)


def chain(network, atoms):
    kind = FastTensorNet2 if network in ("tensornet2", "charged") else FastTensorNet
    settings = dict(num_channels=int(os.environ.get("CHANNELS", "128")), num_layers=1, num_radial=16, cutoff=3.0)
    if network == "gated":
        options = dict(head="gated", num_head_layers=2, readout_activation=False, charge_factor=False)
        network, settings = "tensornet", settings | options
    priors = network == "tensornet2" or atoms == "priors"
    if kind is FastTensorNet2:
        settings["num_charges"] = int(os.environ.get("CHARGES", "16"))
    if network == "headed":
        network, settings = "tensornet", settings | dict(num_head_layers=2)
    if network == "charged":
        network = "tensornet2"
    potential = conftest.random_potential(torch.float32, model=network, **settings).requires_grad_(False)
    if what in ("gated", "headed", "charged"):
        potential = uncertain(potential)
    batch = Batch.from_systems([System.create([[0.0, 0, 0], [0, 0, 1.1]], [6, 8])]).to("cpu", torch.float32)
    edges = brute_force(batch, 3.0)
    fast = kind(potential, bound=1e-2, priors=priors)
    size = dict(few=20, priors=20, some=200, many=20000, large=300000, domain=20000, slabs=20000)[atoms]
    tiles = fast.choose_tiles(size)
    if priors and atoms == "few":
        tiles = replace(tiles, row=None)
    if atoms == "priors":
        tiles = Tiles.choose(size)
    charge_buffers.FEWEST_TO_DIVIDE, charge_buffers.PART = (1, 1) if atoms == "many" else (1024, 128)
    if tiles.by_elements is not None:
        tiles = replace(tiles, by_elements=replace(tiles.by_elements, edges=0))
    plan = None
    if atoms == "slabs":
        work = Workload(atoms=2, capacity=edges.capacity, elements=2)
        plan = replace(fast.planned(work, tiles), chain=SLABS)
    fast.allocate(2, 1, edges.capacity, tiles=tiles, elements=[6, 8], plan=plan, slabs=SlabShape(2, 1, 1))
    pull = (lambda chain: chain.take_pull(chain.channels())) if priors else None
    inputs = (batch.positions, batch.atomic_numbers, batch.system_index, batch.cell, batch.charge, edges)
    if atoms == "domain":
        fast.run(*inputs, virial=True, within=torch.tensor([1, 2, 2], dtype=torch.int32))
        return
    for virial in (False, True):  # without it, energies are summed in another place
        fast.run(*inputs, virial=virial, between=pull)
    if kind is FastTensorNet2 and not priors:
        fast.run(*inputs, forces=False)


BOX = [[9, 0, 0], [0, 9, 0], [0, 0, 9]]
for case in cases[first:]:
    what, of = case.split("/")
    compiled.clear(), seen.clear()
    if what in compile_cases.CASES:
        compile_cases.CASES[what](of)
    elif what in ("step", "priors", "search", "training"):
        dict(step=step, priors=priors, search=search, training=training)[what](of)
    else:
        chain(what, of)
    before |= compiled.keys()
    for name, shared in sorted(compiled.items()):
        print(case, name, *map(max, zip(*shared, strict=True)))
