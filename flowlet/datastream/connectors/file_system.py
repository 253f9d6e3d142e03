"""``FileSource`` and ``FileSink`` by PyFlink's path; see ``flowlet/connectors/files/api.py``.

Side:   pure.
Source: PyFlink ``pyflink.datastream.connectors.file_system``.
"""
# ruff: noqa: F403, F405 - __all__ lists the names

from flowlet.common.not_yet import explain_missing_names
from flowlet.connectors.files.api import *

__all__ = [
    "BucketAssigner",
    "BucketContext",
    "BulkWriterFactory",
    "DefaultRollingPolicy",
    "FileSink",
    "FileSource",
    "FileSourceBuilder",
    "OnCheckpointRollingPolicy",
    "OutputFileConfig",
    "RollingPolicy",
    "StreamFormat",
]

explain_missing_names(__name__)
