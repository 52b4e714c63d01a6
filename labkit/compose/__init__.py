"""Strategies put together for the course model."""

from labkit.compose.axes import make_mesh
from labkit.compose.parallel_model import ParallelModel
from labkit.compose.parallelize import parallelize
from labkit.compose.plan import Plan

__all__ = ["ParallelModel", "Plan", "make_mesh", "parallelize"]
