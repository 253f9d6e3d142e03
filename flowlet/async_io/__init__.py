"""Runs users' coroutines on a shared event loop, and emits their results in the requested order.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
