"""The command `torchmdx`, and its subcommands, one module each."""

from typing import TYPE_CHECKING

from torchmdx.runtime.public_names import public_names

if TYPE_CHECKING:
    from torchmdx.commands.cli import main as main
else:
    __all__, __getattr__, __dir__ = public_names(__name__)
