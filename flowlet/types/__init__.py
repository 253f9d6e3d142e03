"""Declared types: how their values become Arrow arrays, bytes, and records of a remote gate.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
