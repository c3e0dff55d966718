"""Ways to evaluate a potential with fixed shapes."""
