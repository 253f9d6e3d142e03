"""The metrics of a task's operators, as they are sent to the JobManager.

Side:   shared.  Any thread reads them, one chunk or watermark stale.
Source: Flink ``OperatorMetricGroup``, ``InternalOperatorIOMetricGroup``; the gauges currentInputWatermark,
        currentInputNWatermark, currentOutputWatermark.
"""

from collections.abc import Sequence
from dataclasses import asdict

from flowlet.chain.operator_chain import OperatorChain
from flowlet.messages.control_messages import LatencyMetrics, OperatorMetrics, UserMetric
from flowlet.metrics.metric_registry import MetricValue
from flowlet.operators.latency_stats import Histogram, LatencyStats
from flowlet.operators.source_operator import SourceOperator
from flowlet.records import MIN_TIMESTAMP


def operator_metrics(chain: OperatorChain, latencies: Sequence[LatencyStats]) -> list[OperatorMetrics]:
    """The metrics of each operator, in the order of the chain."""
    return [_of(chain, index, latencies[index]) for index in range(len(chain.operators))]


def _of(chain: OperatorChain, index: int, latency: LatencyStats) -> OperatorMetrics:
    ctx = chain.contexts[index]
    watermarks = [] if isinstance(chain.operators[index], SourceOperator) else chain.input_watermarks(index)
    return OperatorMetrics(
        name=ctx.operator_name,
        operator_id=ctx.operator_id.hex(),
        **asdict(ctx.counters),
        current_input_watermark=min(watermarks, default=MIN_TIMESTAMP),
        current_input_watermarks=watermarks,
        current_output_watermark=chain.output_watermark(index),
        latencies=[_latency(name, histogram) for name, histogram in latency.histograms().items()],
        user_metrics=[_user_metric(each) for each in ctx.metrics.values()],
        num_refused_user_metrics=ctx.metrics.num_refused,
    )


def _user_metric(shown: MetricValue) -> UserMetric:
    return UserMetric(
        name=shown.name,
        kind=shown.kind.value,
        value=shown.value,
        rate=shown.rate,
        sum=shown.sum,
        min=shown.min,
        max=shown.max,
    )


def _latency(name: str, histogram: Histogram) -> LatencyMetrics:
    statistics = asdict(histogram.statistics())
    return LatencyMetrics(name, **(statistics | {"count": histogram.count}))
