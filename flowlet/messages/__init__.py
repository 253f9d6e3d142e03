"""Structs that processes of a cluster exchange.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
