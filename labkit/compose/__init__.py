"""Strategies put together for the course model."""
