"""Training of potentials on labelled structures."""

from typing import TYPE_CHECKING

from torchmdx.runtime.public_names import public_names

if TYPE_CHECKING:
    from torchmdx.training.config import Config as Config
    from torchmdx.training.config_file import make_config as make_config
    from torchmdx.training.config_file import read_config as read_config
    from torchmdx.training.loop import Trainer as Trainer
    from torchmdx.training.run import open_trainer as open_trainer
    from torchmdx.training.run import train as train
else:
    __all__, __getattr__, __dir__ = public_names(__name__)
