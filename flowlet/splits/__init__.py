"""Splits of a source and their enumerators, for JobManager and tasks.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
