"""Sources of numbers, and of records that a function makes of numbers.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
