"""Runs users' coroutines on a shared event loop, and emits their results in the requested order."""
