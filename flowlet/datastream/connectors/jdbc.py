"""``JdbcSink`` by PyFlink's path; see ``flowlet/connectors/database/api.py``.

Side:   pure.
Source: PyFlink ``pyflink.datastream.connectors.jdbc``.
"""
# ruff: noqa: F403, F405 - __all__ lists the names

from flowlet.connectors.database.api import *
from flowlet.connectors.database.statement import JdbcConnectionOptions, JdbcExecutionOptions

__all__ = ["JdbcConnectionOptions", "JdbcExactlyOnceSink", "JdbcExecutionOptions", "JdbcSink"]
