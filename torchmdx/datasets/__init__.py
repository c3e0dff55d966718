"""Labelled structures on disk: readers of users' files, a packed store, fixed splits, reference energies."""
