"""Pushes DataFrames from PySpark into remote gates of a running job; needs the extra ``spark``.

``GateSink`` and the data source ``flowlet`` push each partition of a DataFrame.
"""

# Sorted first, because this import must be the first one: it says which extra is missing.
from flowlet.spark.available import MissingSparkError
from flowlet.spark.data_source import GateSink, register
from flowlet.spark.gate_schema import SchemaMismatchError, type_info_of

__all__ = ["GateSink", "MissingSparkError", "SchemaMismatchError", "register", "type_info_of"]
