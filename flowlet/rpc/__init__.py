"""Signed HTTP, sessions and the shared secret of a cluster.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
