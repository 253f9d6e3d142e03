"""What lies between a task's gates, its operators and its partitions: input processors and record writers.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
