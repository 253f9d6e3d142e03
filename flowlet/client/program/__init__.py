"""The client's part in the thread of the user's program: its interrupts and its frames.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
