"""The storage of checkpoints: files below a directory or a URL of fsspec, and their manifests.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
