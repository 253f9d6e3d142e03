"""Columns of values of declared types: what a remote gate with a type reads, and nothing else.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
