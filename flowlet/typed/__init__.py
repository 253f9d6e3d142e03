"""Conversion of records to declared types on their way to another operator, and their texts when they are printed.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
