"""Lengths of time and sizes in bytes, and their texts.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
