"""Replica exchange on a GPU: attempts without the host, and what it reads of them with a snapshot."""

from __future__ import annotations

import numpy as np
import torch
import triton
from numpy.typing import NDArray
from torch import Tensor

from torchmdx.dynamics.device_state import BLOCK, DeviceState
from torchmdx.dynamics.exchange import TemperatureExchange
from torchmdx.dynamics.kernels import exchange as kernels
from torchmdx.structures.units import BOLTZMANN

Floats = NDArray[np.float64]

MOST_REPLICAS = 4096  # neighbours on the ladder are the lanes of one program


class DeviceExchange:
    """Temperatures [S], counts and the step of the newest attempt, in one block that a snapshot copies.

    Thermal energies k T, which the integrator reads, are a part of it, so that a capture can put all back.
    """

    def __init__(self, exchange: TemperatureExchange, state: DeviceState, temperatures: Floats) -> None:
        count = state.num_systems
        if count > MOST_REPLICAS:
            raise ValueError(f"an exchange on a GPU needs at most {MOST_REPLICAS} replicas, got {count}")
        self.exchange, self.state = exchange, state
        self.sizes = (count, count, count - 1, count - 1, 1)
        self.block = torch.zeros(sum(self.sizes), dtype=torch.float64, device=state.block.device)
        self.temperatures, thermal, *counts = self.block.split(self.sizes)
        self.attempts, self.accepted, self.last = (part.view(torch.int64) for part in counts)
        thermal.copy_(state.thermal)
        state.thermal = thermal
        self.order = torch.zeros(count, dtype=torch.int32, device=self.block.device)
        self.factors = torch.ones_like(self.temperatures)
        self.seed = torch.tensor([exchange.seed], dtype=torch.int64, device=self.block.device)
        self.constants = torch.tensor([BOLTZMANN], dtype=torch.float64, device=self.block.device)
        self.set(temperatures)

    def set(self, temperatures: Floats) -> None:
        """Takes other temperatures."""
        self.temperatures.copy_(torch.as_tensor(temperatures))

    def begin_at(self, step: int) -> None:
        """The state is that of this step, after its attempts."""
        self.last.fill_(step)

    def launch(self) -> None:
        """The attempts of the current step if they are due and have not been made."""
        state, count = self.state, self.state.num_systems
        options = dict(num_warps=4, enable_fp_fusion=False)
        kernels.rank[(triton.cdiv(count, BLOCK),)](
            self.temperatures, self.order, self.factors, count, BLOCK=BLOCK, **options
        )
        kernels.decide[(1,)](
            self.temperatures, state.thermal, state.energy, state.restraint_energy, self.order, self.factors,
            self.attempts, self.accepted, self.last, state.control, self.seed, self.constants, count,
            self.exchange.every, BLOCK=max(32, triton.next_power_of_2(count // 2)), **options,
        )  # fmt: skip
        kernels.scale[(triton.cdiv(state.num_atoms, BLOCK),)](
            state.velocities, state.system, self.factors, state.num_atoms, BLOCK=BLOCK, **options
        )

    def received(self, block: Tensor) -> Floats:
        """Temperatures [S] of a copied block, whose counts become those of the exchange."""
        temperatures, _, attempts, accepted, _ = (part.numpy().copy() for part in block.split(self.sizes))
        self.exchange.attempts[:] = attempts.view(np.int64)
        self.exchange.accepted[:] = accepted.view(np.int64)
        return temperatures
