"""Decides whether an exercise is solved, by what the learner's program did."""
