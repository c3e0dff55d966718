"""Training of potentials on labelled structures."""
