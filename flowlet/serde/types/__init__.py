"""Serializers of single values by their declared types.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
