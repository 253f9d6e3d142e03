"""Base classes of sink functions."""
