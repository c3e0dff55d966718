"""Reports on how well a potential predicts: errors, pictures, one page."""
