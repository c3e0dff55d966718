"""Labels for training: structures made and evaluated with any ASE calculator, in parallel, resumable after a kill."""

from typing import TYPE_CHECKING

from torchmdx.runtime.public_names import public_names

# Of `Sampling.method`; the command line reads them here, without NumPy.
METHODS = ("conformers", "normal-modes", "md", "rattle")

if TYPE_CHECKING:
    from torchmdx.datasets.labelling.calculators import Choice as Choice
    from torchmdx.datasets.labelling.ledger import Failure as Failure
    from torchmdx.datasets.labelling.run import Crew as Crew
    from torchmdx.datasets.labelling.run import Summary as Summary
    from torchmdx.datasets.labelling.run import label as label
    from torchmdx.datasets.labelling.sampling import Sampling as Sampling
    from torchmdx.datasets.labelling.sources import StructureFiles as StructureFiles
else:
    __all__, __getattr__, __dir__ = public_names(__name__)
