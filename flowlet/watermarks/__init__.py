"""Makes watermarks, combines them, and holds sources back that run ahead.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
