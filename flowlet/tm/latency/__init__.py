"""Makes records of a TaskManager fast: core, thread priorities, switch interval.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
