"""The metrics that functions register: counters, gauges, meters, distributions.

Source: PyFlink ``pyflink.metrics``.
"""

from flowlet.metrics.metricbase import Counter, Distribution, Meter, Metric, MetricGroup

__all__ = ["Counter", "Distribution", "Meter", "Metric", "MetricGroup"]
