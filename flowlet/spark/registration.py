"""Makes the data source ``flowlet`` known to the calling thread's Spark session.

Side: task.  Runs in the user's program.
"""

from pyspark.sql import SparkSession

from flowlet.spark.data_source import FlowletDataSource


def register(spark: SparkSession) -> None:
    """Let this thread use ``format("flowlet")`` with ``spark``.

    Spark finds the Python data sources of the session that is active in the calling thread, and each thread has its own
    active session: the thread that made the session has it, a thread of a pool has none.  Call this in each of them,
    for example as the initializer of a ``ThreadPoolExecutor``.  The main thread needs it only where ``pyspark_flowlet``
    is not on the path of Spark's Python.
    """
    spark.dataSource.register(FlowletDataSource)
    spark.sparkContext._jvm.SparkSession.setActiveSession(spark._jsparkSession)  # type: ignore[union-attr]  # PySpark has no public call
