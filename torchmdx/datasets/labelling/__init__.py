"""Labels for training: structures made and evaluated with any ASE calculator, in parallel, resumable after a kill."""

# Of `Sampling.method`; the command line reads them here, without NumPy.
METHODS = ("conformers", "normal-modes", "md", "rattle")
