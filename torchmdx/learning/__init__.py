"""Active learning: `torchmdx learn`, from a few structures to a potential."""
