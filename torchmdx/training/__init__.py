"""Learning a potential from labelled structures."""
