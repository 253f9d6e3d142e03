"""The writer and the committer of every ``WriteAheadSink``.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
