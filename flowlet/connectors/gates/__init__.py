"""Gates: what producers outside the cluster push.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
