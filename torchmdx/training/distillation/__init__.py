"""Fast models for multiple time steps, distilled from a potential: `torchmdx distill`."""
