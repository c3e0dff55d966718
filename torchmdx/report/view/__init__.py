"""Interactive HTML pages of trajectories and structures."""
