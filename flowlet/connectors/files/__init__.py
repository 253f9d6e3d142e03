"""The file sink: part files, their formats, their writer and their committer.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
