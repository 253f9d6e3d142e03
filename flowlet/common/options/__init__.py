"""Options by name: those that flowlet knows, those that only Flink knows, and what they say about a job.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
