"""Counted buffers over one arena, and the pools that share it."""
