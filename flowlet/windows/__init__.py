"""Windows on the side of the task: the operator, its state and its timers.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
