"""Labels for training: structures made and evaluated with any ASE calculator, in parallel, resumable after a kill."""
