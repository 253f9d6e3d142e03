"""How Spark finds the data source ``flowlet``: it imports every top-level module whose name begins with ``pyspark_``.

Side:   task.  Read by Python processes of the driver.
Absent: anything else.  In the wheel this module lies beside the package ``flowlet``, not in it.
"""

from flowlet.spark.data_source import FlowletDataSource as DefaultSource

__all__ = ["DefaultSource"]
