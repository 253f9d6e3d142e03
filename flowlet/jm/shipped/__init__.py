"""The files that jobs ship: kept by the JobManager in parts, which it does not look into.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
