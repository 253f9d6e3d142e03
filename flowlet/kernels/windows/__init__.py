"""Windows and joins of columns in numpy and Arrow arrays.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
