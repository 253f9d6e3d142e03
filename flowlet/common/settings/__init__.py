"""What a job was told to do: plain values that travel with it.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
