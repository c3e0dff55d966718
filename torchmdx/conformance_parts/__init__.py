"""What the checks of conformance are made of."""
