"""Puts this folder, with the checks that tests of searches share, on the path of the tests below it."""
