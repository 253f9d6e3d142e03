"""Input processors and record writers, which lead records from a task's gates to its operators and on to partitions.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
