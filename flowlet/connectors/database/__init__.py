"""The database sink: sessions, statements, rows, and a driver for each database.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
