"""Lets Spark find the data source ``flowlet``: it imports every top-level module whose name begins with ``pyspark_``.

Side:   task.  Imported by Python processes of the driver.
Rules:  contains no other code.  In the wheel this module is beside the package ``flowlet``, not in it.
"""

from flowlet.spark.data_source import FlowletDataSource as DefaultSource

__all__ = ["DefaultSource"]
