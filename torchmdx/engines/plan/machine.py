"""Facts about a machine that decide which kernels run on it: read from the driver, or known of a card by its name."""

from __future__ import annotations

import functools
import importlib.util
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torchmdx.runtime.card_records import clusters_of

if TYPE_CHECKING:
    import torch

GIB = 2**30
HOPPER = (9, 0)  # compute capability of the H100 and H200, for which kernels of CUDA C++ are written


@dataclass(frozen=True, kw_only=True)
class Machine:
    """kind: "gpu" or "cpu". capability: of CUDA. shared_bytes: that a block can have. memory: of the device, bytes.

    Attributes:
        clusters: By the number of their blocks, how many clusters run at the same time where a block takes a whole
            multiprocessor. Parts of the chip have odd numbers of multiprocessors, so it is fewer than their number
            allows. Empty where it has not been measured, here or by `torchmdx bench --all` on the card: then no kernel
            runs whose blocks wait for those of other clusters.
        triton: Whether it is installed.
        compiled, pair_kernels: Whether the C code of networks and of training is there.
    """

    kind: str
    name: str
    capability: tuple[int, int] = (0, 0)
    multiprocessors: int = 0
    shared_bytes: int = 0
    memory: int = 0
    clusters: tuple[tuple[int, int], ...] = ()
    triton: bool = True
    compiled: bool = True
    pair_kernels: bool = True

    @classmethod
    def of(
        cls, device: torch.device, *, code: bool = True, dtype: str = "float32", pair_kernels: bool = True
    ) -> Machine:
        """What the driver tells of a device; of the CPU, whether there is compiled code.

        Args:
            code: Look for the code, which is compiled if it is missing; else it is taken to be there.
            dtype: Of the weights that the code of networks is for.
            pair_kernels: Look for those of training too if there is code of networks, without which they are used.
        """
        return _gpu(device) if device.type == "cuda" else _cpu(code, dtype, pair_kernels)

    @property
    def is_gpu(self) -> bool:
        return self.kind == "gpu"

    @property
    def is_hopper(self) -> bool:
        return self.is_gpu and self.capability == HOPPER

    def most_clusters(self, blocks: int) -> int:
        """How many clusters of `blocks` blocks run at the same time; at most, where that is not known."""
        return dict(self.clusters).get(blocks, self.multiprocessors // blocks)

    def __str__(self) -> str:
        if not self.is_gpu:
            return self.name
        return f"{self.name} (sm_{self.capability[0]}{self.capability[1]}, {self.memory / GIB:.0f} GiB)"


def _card(name: str, capability: tuple[int, int], multiprocessors: int, shared: int, gibibytes: float) -> Machine:
    clusters = ((8, 15),) if capability == HOPPER else ()  # measured on an H200
    return Machine(
        kind="gpu",
        name=name,
        capability=capability,
        multiprocessors=multiprocessors,
        shared_bytes=shared * 1024,
        memory=int(gibibytes * GIB),
        clusters=clusters,
    )


# Multiprocessors, shared memory of a block in KiB and memory in GiB: as NVIDIA documents them.
MACHINES = {
    "H200": _card("H200", HOPPER, 132, 227, 140),
    "H100": _card("H100", HOPPER, 132, 227, 79),
    "A100": _card("A100", (8, 0), 108, 163, 79),
    "B200": _card("B200", (10, 0), 148, 227, 178),
    "RTX 5090": _card("RTX 5090", (12, 0), 170, 99, 31),
    "RTX 4090": _card("RTX 4090", (8, 9), 128, 99, 23.5),
    "RTX 3090": _card("RTX 3090", (8, 6), 82, 99, 23.5),
    "CPU": Machine(kind="cpu", name="CPU"),
}


def machine_named(name: str) -> Machine:
    """The machine of this name, in any case and with or without spaces. Raises ValueError for an unknown one."""
    plain = {known.replace(" ", "").lower(): machine for known, machine in MACHINES.items()}
    found = plain.get(name.replace(" ", "").replace("-", "").replace("_", "").lower())
    if found is None:
        raise ValueError(f"card must be one of {', '.join(MACHINES)}, got {name!r}")
    return found


@functools.cache
def _gpu(device: torch.device) -> Machine:
    import torch

    found = torch.cuda.get_device_properties(device)
    machine = Machine(
        kind="gpu",
        name=found.name,
        capability=(found.major, found.minor),
        multiprocessors=found.multi_processor_count,
        shared_bytes=getattr(found, "shared_memory_per_block_optin", 0),
        memory=found.total_memory,
        triton=importlib.util.find_spec("triton") is not None,
    )
    # The driver tells of a compiled kernel only how many clusters fit: until then, those of the same chip.
    alike = [m for m in MACHINES.values() if (m.capability, m.multiprocessors) == _size(machine)]
    if not alike and machine.is_hopper:
        recorded = clusters_of(machine.name, machine.multiprocessors)
        return replace(machine, clusters=((8, recorded),) if recorded else ())
    return replace(machine, clusters=alike[0].clusters) if alike else machine


def _size(machine: Machine) -> tuple[tuple[int, int], int]:
    return machine.capability, machine.multiprocessors


def _cpu(code: bool, dtype: str, pair_kernels: bool) -> Machine:
    from torchmdx.runtime.c_library import c_library

    compiled = not code or c_library("tensornet_double" if dtype == "float64" else "tensornet") is not None
    return replace(
        MACHINES["CPU"],
        triton=importlib.util.find_spec("triton") is not None,
        compiled=compiled,
        pair_kernels=not code or (compiled and not pair_kernels) or c_library("kernels") is not None,
    )
