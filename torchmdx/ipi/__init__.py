"""i-PI: a client of its socket protocol, a driver that runs inside it, and what both evaluate."""

from typing import TYPE_CHECKING

from torchmdx.runtime.public_names import public_names

if TYPE_CHECKING:
    from torchmdx.ipi.address import Address as Address
    from torchmdx.ipi.beads import Beads as Beads
    from torchmdx.ipi.beads import load_beads as load_beads
    from torchmdx.ipi.client import Client as Client
    from torchmdx.ipi.client import Served as Served
    from torchmdx.ipi.driver import TorchmdxDriver as TorchmdxDriver
else:
    __all__, __getattr__, __dir__ = public_names(__name__)
