"""Lengths of time and sizes in bytes, and their texts."""
