"""Gates, into which producers outside the cluster push records.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
