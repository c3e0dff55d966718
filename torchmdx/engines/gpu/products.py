"""The launches of products with weight matrices on tensor cores, for the chains of kernels."""

from __future__ import annotations

from abc import ABC, abstractmethod

import triton
from torch import Tensor

from torchmdx.engines.gpu.triton import gated_head, tf32_product
from torchmdx.engines.gpu.triton.tf32_product import Split
from torchmdx.engines.plan.launch_sizes import Tiles


class ChainProducts(ABC):
    """For n atoms of c channels; see `Chain`."""

    n: int
    c: int
    tiles: Tiles
    within: Tensor | None
    activation: dict[str, str]

    @abstractmethod
    def atoms(self, hops: int) -> int | Tensor:
        """Number of atoms that a kernel evaluates."""

    def _multiply_parts(self, x: Tensor, matrices: Split, out: Tensor, hops: int = 0) -> None:
        options = self.tiles.product.options(self.c, self.c)
        blocks = triton.cdiv(self.n, options["ROWS"]) * (self.c // options["COLUMNS"])
        tf32_product.multiply_parts[(9 * blocks,)](
            x, matrices.big, matrices.small, out, self.atoms(hops), CHANNELS=self.c, **options
        )  # fmt: skip

    def _multiply(
        self,
        x: Tensor,
        matrix: Split,
        side: Tensor,
        out: Tensor,
        after: str,
        activation: str | None = None,
        hops: int = 0,
    ) -> None:
        width, inner = matrix.big.shape
        options = self.tiles.product.options(inner, width)
        count = len(x) if self.within is None else self.atoms(hops)
        tf32_product.multiply[(triton.cdiv(len(x), options["ROWS"]), triton.cdiv(width, options["COLUMNS"]))](
            x, matrix.big, matrix.small, side, out, count, INNER=inner, WIDTH=width,
            AFTER=after, ACTIVATION=activation or self.activation["ACTIVATION"], **options,
        )  # fmt: skip

    def _multiply_halves(
        self, x: Tensor, matrices: Split, side: Tensor, out: Tensor, atoms: int | Tensor, back: bool
    ) -> None:
        options = self.tiles.product.options(self.c, self.c)
        grid = (triton.cdiv(len(x), options["ROWS"]), self.c // options["COLUMNS"], 2)
        gated_head.multiply_halves[grid](
            x, matrices.big, matrices.small, side, out, atoms, CHANNELS=self.c,
            BACK=back, **self.activation, **options,
        )  # fmt: skip
