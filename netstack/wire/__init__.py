"""Frames, messages and in-band events as pure code."""
