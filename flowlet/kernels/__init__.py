"""Aggregations per key on numpy columns: codes in, columns out.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
