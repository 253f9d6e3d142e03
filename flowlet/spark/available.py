"""Says which extra is missing if PySpark is not installed.

Side: pure.
"""

from flowlet.errors import FlowletError


class MissingSparkError(FlowletError, ImportError):
    """PySpark is not installed; the message says how to install it."""


try:
    import pyspark  # noqa: F401 - only to see whether it is installed
except ImportError as error:
    raise MissingSparkError(
        "flowlet.spark needs PySpark 4, which is not installed here: pip install 'flowlet[spark]'"
    ) from error
