"""The contract of engines: `check_engine(make, potential)`."""

from typing import TYPE_CHECKING

from torchmdx.runtime.public_names import public_names

if TYPE_CHECKING:
    from torchmdx.engines.conformance.check import check_engine as check_engine
else:
    __all__, __getattr__, __dir__ = public_names(__name__)
