"""PySpark at the edges of a flowlet job; needs the extra ``spark``.

``GateSink`` and the data source ``flowlet`` push the partitions of a DataFrame into a remote gate of a running job.
"""

# The first import says which extra is missing, if one is; so its name comes first in the alphabet.
from flowlet.spark.available import MissingSparkError
from flowlet.spark.gate_schema import SchemaMismatchError, type_info_of
from flowlet.spark.gate_sink import GateSink

__all__ = ["GateSink", "MissingSparkError", "SchemaMismatchError", "type_info_of"]
