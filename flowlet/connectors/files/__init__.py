"""Files: the source with its splits and readers; the sink with part files, their formats, writer and committer.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
