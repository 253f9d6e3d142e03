"""Which parts of a job restart without the others, and what of a job belongs to such a part.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
