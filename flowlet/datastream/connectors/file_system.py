"""``FileSource`` and ``FileSink`` by PyFlink's path; see ``flowlet/connectors/files/api.py``.

Side:   pure.
Source: PyFlink ``pyflink.datastream.connectors.file_system``.
"""
# ruff: noqa: F403, F405 - __all__ lists the names

from typing import TYPE_CHECKING

from flowlet.common.not_yet import missing_names
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

if not TYPE_CHECKING:
    __getattr__ = missing_names(__name__)
