"""Hands job graphs to a cluster: embedded or remote.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
