"""Runs of labkit's own strategies as one rank of a world that is not there."""
