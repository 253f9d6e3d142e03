"""The services of a task for each of its operators: mailbox, clock, timers, keyed state, latency statistics.

The metrics of a task's operators, as they are sent to the JobManager; ``LatencyStats``: how long records take from a
source to an operator.

``EdgeFunctions``: the life cycle of key selectors and partitioners, which belong to edges and to no operator.

Side:       task; metrics are read anywhere.
Units:      milliseconds; latencies by the clocks of the two machines, which must agree: a negative latency is reported
            as it is.
Source:     Flink ``LatencyStats``, ``DescriptiveStatisticsHistogram``.  Flink ``OperatorMetricGroup``,
            ``InternalOperatorIOMetricGroup``; the gauges currentInputWatermark, currentInputNWatermark,
            currentOutputWatermark.  PyFlink opens key selectors and partitioners with the operators that it adds for
            ``key_by`` and ``partition_custom``, which run beside the operator that emits the records, as here.  Flink
            ``StateBackendLoader``, ``StateBackend.createKeyedStateBackend``.  Flink ``OperatorChain.createOperator``,
            ``StreamOperatorWrapper.quiesceTimeServiceAndFinishOperator``.
Invariants: a marker is reported once at each operator that it passes; sinks do not forward it; a histogram holds its
            last values only.  A function is opened before the first record leaves the chain, and closed once, even if
            other functions fail.  ``EdgeFunctions`` has only functions that override ``open`` or ``close``.  The
            priority of an operator's mails is its place in the chain, from 1: so a yield runs mails of operators behind
            it, and no mails of operators before it.
"""

import hashlib
import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, field
from functools import partial
from typing import Any, Final

from flowlet.chain.operator_chain import ChainedOperator, OperatorChain, errors_of, raise_first
from flowlet.chain.stream_operator import OperatorContext, StreamOperator
from flowlet.common.job_settings import StateSettings
from flowlet.datastream.states.runtime_context import RuntimeContext
from flowlet.datastream.user_functions.function import has_life_cycle
from flowlet.graph.partitioner import Custom, KeyGroups
from flowlet.keys.exact_keys import key_group_range
from flowlet.mailbox.mailbox_processor import MailboxProcessor, TaskTimings
from flowlet.mailbox.task_mailbox import Attention, Interrupts
from flowlet.messages import control_messages as messages
from flowlet.messages.control_messages import LatencyMetrics
from flowlet.metrics.metricbase import SAMPLE_INTERVAL_MS, MetricRegistry
from flowlet.operators.source_operator import SourceOperator
from flowlet.operators.user_function import UserFunction
from flowlet.records import MIN_TIMESTAMP, OPERATOR_ID_BYTES, LatencyMarker
from flowlet.state.state_backends import KeyedStateBackend, OperatorStateBackend, SharedFiles
from flowlet.task.task_environment import OutputEdge, TaskEnvironment
from flowlet.timers.keyed_timer_service import KeyContext, KeyedTimerServiceManager
from flowlet.timers.system_processing_time_service import SystemProcessingTimeService
from netstack.availability import AvailabilityFuture
from netstack.late import dataclass
from netstack.log_lines import LogLines

# Flink's metrics.latency.history-size.
DEFAULT_HISTORY_SIZE: Final = 128


class Histogram:
    """The last values of a series.

    Threading: ``update`` on one thread, ``metrics`` anywhere.

    Args:
        window: how many values are kept.
    """

    __slots__ = ("_lock", "_values", "count")

    def __init__(self, window: int = DEFAULT_HISTORY_SIZE) -> None:
        if window < 1:
            raise ValueError(f"a histogram needs room for a value, got {window}")
        self._lock = threading.Lock()
        self._values: deque[int] = deque(maxlen=window)  # Guarded by _lock.
        self.count = 0  # All updates; written by one thread, read anywhere.

    def __repr__(self) -> str:
        return f"<Histogram of the last {len(self._values)} of {self.count} values>"

    def update(self, value: int) -> None:
        """Add a value."""
        with self._lock:
            self._values.append(value)
            self.count += 1

    def metrics(self, name: str) -> LatencyMetrics:
        """The number of all values, and the distribution of the values in the window; all 0 if there are no values."""
        # A copy under the lock: a deque must not change while it is sorted.
        with self._lock:
            values = sorted(self._values)
        if not values:
            return LatencyMetrics(name, self.count, *(0.0,) * 10)
        mean = sum(values) / len(values)
        variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1) if len(values) > 1 else 0.0
        quantiles = (_quantile(values, part) for part in (0.5, 0.75, 0.95, 0.98, 0.99, 0.999))
        return LatencyMetrics(name, self.count, values[0], values[-1], mean, math.sqrt(variance), *quantiles)


def _quantile(ordered: list[int], part: float) -> float:
    """Interpolate between the two values around position ``part * (n + 1)``, as the library does that Flink uses."""
    position = part * (len(ordered) + 1)
    if position < 1:
        return ordered[0]
    if position >= len(ordered):
        return ordered[-1]
    below = math.floor(position)
    return ordered[below - 1] + (position - below) * (ordered[below] - ordered[below - 1])


class LatencyStats:
    """The histograms of one operator's subtask, one for each source.

    Threading: ``report`` on the task thread; the rest anywhere.

    Args:
        operator_id: of the operator that reports.
        subtask: of the operator that reports.
    """

    def __init__(self, operator_id: bytes, subtask: int) -> None:
        self._suffix = f"operator_id.{operator_id.hex()}.operator_subtask_index.{subtask}.latency"
        self._histograms: dict[bytes, Histogram] = {}  # Written by the task thread.

    def __repr__(self) -> str:
        return f"<LatencyStats {self._suffix}, {len(self._histograms)} histograms>"

    def report(self, marker: LatencyMarker, now_ms: int) -> None:
        """Add the latency of a marker that arrived."""
        # With its first marker: how many sources there are is not known before.
        if marker.operator_id not in self._histograms:
            self._histograms[marker.operator_id] = Histogram()
        self._histograms[marker.operator_id].update(now_ms - marker.marked_time_ms)

    def metrics(self) -> list[LatencyMetrics]:
        """The metrics of each histogram, with the name of the metric below the scope of the job."""
        # A copy first, in one step: the task thread may add a histogram meanwhile.
        by_source = list(self._histograms.items())
        return [each.metrics(f"source_id.{source.hex()}.{self._suffix}") for source, each in by_source]


def operator_metrics(chain: OperatorChain, latencies: Sequence[LatencyStats]) -> list[messages.OperatorMetrics]:
    """The metrics of each operator, in the order of the chain."""
    found = []
    for index, (ctx, latency) in enumerate(zip(chain.contexts, latencies, strict=True)):
        watermarks = [] if isinstance(chain.operators[index], SourceOperator) else chain.input_watermarks(index)
        metrics = messages.OperatorMetrics(
            name=ctx.operator_name,
            operator_id=ctx.operator_id.hex(),
            **asdict(ctx.counters),
            current_input_watermark=min(watermarks, default=MIN_TIMESTAMP),
            current_input_watermarks=watermarks,
            current_output_watermark=chain.output_watermark(index),
            latencies=latency.metrics(),
            user_metrics=[messages.UserMetric(**asdict(each)) for each in ctx.metrics.values()],
            num_refused_user_metrics=ctx.metrics.num_refused,
        )
        found.append(metrics)
    return found


_NO_STATE: Final = "key selectors and partitioners have no keyed state"


class EdgeFunctions:
    """Opens and closes the functions of a task's edges, those inside its chain included; task thread.

    Args:
        chain: the operators, head first.
        outputs: the edges that leave the task.
        contexts: of the operators; a function gets the context of the operator whose records it sees.
    """

    def __init__(
        self, chain: Sequence[ChainedOperator], outputs: Sequence[OutputEdge], contexts: Sequence[OperatorContext]
    ) -> None:
        # By identity: operators of one chain may share a selector.
        found = {
            id(function): (function, method, contexts[index]) for function, method, index in _functions(chain, outputs)
        }
        self._functions = [(UserFunction(function, method), ctx) for function, method, ctx in found.values()]
        self._num_open = 0

    def __repr__(self) -> str:
        return f"<EdgeFunctions {self._num_open} of {len(self._functions)} open>"

    def open(self) -> None:
        """Open the functions.  Raises UserFunctionError, which names the operator that emits the records."""
        for function, ctx in self._functions:
            self._num_open += 1  # before the call: after an open() that fails, close() must be called, too
            function.run("open", RuntimeContext(ctx, _NO_STATE), ctx=ctx)

    def close(self) -> None:
        """Close the functions that were opened; idempotent.

        Raises UserFunctionError: the first error, with notes about the others, after all were closed.
        """
        opened = self._functions[: self._num_open]
        self._num_open = 0
        raise_first(errors_of(partial(function.run, "close", ctx=ctx) for function, ctx in reversed(opened)))


def _functions(chain: Sequence[ChainedOperator], outputs: Sequence[OutputEdge]) -> Iterator[tuple[Any, str, int]]:
    """Each function with a life cycle, its method, and the index of the operator whose records it sees."""
    found = [(item.key_selector, "get_key", item.parent) for item in chain]
    for edge in outputs:
        match edge.partitioner:
            case KeyGroups(key_selector=selector):
                found.append((selector, "get_key", edge.source_operator))
            case Custom(partition_function=partitioner, selector=selector):
                found += [(selector, "get_key", edge.source_operator), (partitioner, "partition", edge.source_operator)]
            case _:
                pass
    return ((function, method, index) for function, method, index in found if has_life_cycle(function))


_num_places: Final = itertools.count()  # of this process; Flink takes one directory after the other, too


def create_keyed_state_backend(
    settings: StateSettings,
    key_context: KeyContext,
    now_ms: Callable[[], int],
    key_groups: range,
    max_parallelism: int,
    shared_files: SharedFiles | None,
) -> KeyedStateBackend:
    """The back end that the job's settings name; ``shared_files``: of its checkpoints, None: it takes none."""
    if not settings.is_rocksdb:
        from flowlet.state.heap_keyed_state_backend import HeapKeyedStateBackend

        return HeapKeyedStateBackend(key_context, now_ms, key_groups, max_parallelism)
    from flowlet.state.rocksdb.rocksdb_keyed_state_backend import RocksDBKeyedStateBackend, RocksDBPlace

    # In turn: the operators of one process share the disks.
    directory = settings.directories[next(_num_places) % len(settings.directories)] if settings.directories else ""
    place = RocksDBPlace(directory, shared_files, writes_shared_files=settings.is_incremental)
    return RocksDBKeyedStateBackend(key_context, now_ms, key_groups, max_parallelism, place)


_log = LogLines(__name__)


@dataclass(slots=True, eq=False)
class OperatorServices:
    """Makes the contexts of a task's operators, and ends their services.

    Threading: made anywhere, used on the task thread; statistics anywhere.
    Life cycle: ``context`` for each operator, in their order -> ``quiesce`` of each one's clock before it finishes ->
        ``close``.
    """

    environment: TaskEnvironment
    chain: Sequence[ChainedOperator]
    processor: MailboxProcessor
    timings: TaskTimings
    interrupts: Interrupts
    attention: Attention
    latencies: list[LatencyStats] = field(init=False, default_factory=list)
    clocks: list[SystemProcessingTimeService] = field(init=False, default_factory=list)
    _closers: list[Callable[[], None]] = field(init=False, default_factory=list)

    def __repr__(self) -> str:
        return f"<OperatorServices {self.clocks!r}>"

    def context(self, index: int, operator_name: str) -> OperatorContext:
        """The context of the operator at ``index``."""
        environment = self.environment
        operator_id = operator_id_of(self.chain[index].operator, environment.vertex_id, index)
        # As in Flink, priorities start at 1; 0 is for sources chained into an operator with several inputs.
        executor = self.processor.executor(index + 1)
        clock = SystemProcessingTimeService(
            environment.schedule_timer, executor, paused_ns=lambda: self.timings.snapshot().back_pressured_ns
        )
        key_context = KeyContext()
        # With a sorted input there is one key at a time, whose state needs no disk.
        ends_keys = index == 0 and _ends_keys(environment, self.chain[0].operator)
        key_groups = key_group_range(environment.max_parallelism, environment.parallelism, environment.subtask)
        timers = KeyedTimerServiceManager(
            key_context,
            clock,
            key_groups,
            environment.max_parallelism,
            should_interrupt=lambda: executor.should_interrupt,
            executor=executor,
            clock_ns=self.timings.now_ns,
            is_batch=ends_keys,
            has_records_behind=lambda: self.attention.has_records_behind,
        )
        latency = LatencyStats(operator_id, environment.subtask)
        checkpointing = environment.checkpointing
        keyed_state = create_keyed_state_backend(
            StateSettings() if ends_keys else environment.state,
            key_context,
            clock.current_time_ms,
            key_groups,
            environment.max_parallelism,
            None if checkpointing is None else checkpointing.shared_files,
        )
        self.clocks.append(clock)
        self.latencies.append(latency)
        # Timers first: none may fire into a state that is closed.
        self._closers += [timers.close, clock.shut_down, keyed_state.close]
        return OperatorContext(
            task_name=environment.task_name,
            subtask=environment.subtask,
            parallelism=environment.parallelism,
            max_parallelism=environment.max_parallelism,
            operator_name=operator_name,
            attempt=environment.attempt_number,
            operator_id=operator_id,
            key_context=key_context,
            executor=executor,
            clock=clock,
            timers=timers,
            keyed_state=keyed_state,
            operator_state=OperatorStateBackend(environment.subtask),
            restored_checkpoint_id=None if checkpointing is None else checkpointing.restored_checkpoint_id,
            report_latency=latency.report,
            report_watermark=lambda timestamp: environment.send(
                messages.SourceWatermarkReported(environment.attempt, timestamp)
            ),
            request_splits=lambda: environment.send(messages.SplitsRequested(environment.attempt)),
            job_id=environment.job_id,
            has_checkpoints=checkpointing is not None and checkpointing.are_periodic,
            delay=self._delay,
            is_cancelled=lambda: self.attention.is_cancelled,
            interrupts=self.interrupts,
            attention=self.attention,
            metrics=self._create_metrics(operator_name, clock),
            job_parameters=environment.job_parameters,
            cached_files=environment.cached_files,
        )

    def _create_metrics(self, operator_name: str, clock: SystemProcessingTimeService) -> MetricRegistry:
        def start_sampling() -> None:
            # Only for metrics that need it: most operators pay for no timer.
            clock.schedule_with_fixed_delay(
                lambda _: metrics.sample(), initial_delay_ms=SAMPLE_INTERVAL_MS, period_ms=SAMPLE_INTERVAL_MS
            )

        def warn(name: str, error: Exception) -> None:
            _log.warning(
                "a gauge failed, and shows nothing",
                operator=operator_name,
                gauge=name,
                error=f"{type(error).__name__}: {error}",
            )

        metrics = MetricRegistry(time.monotonic_ns, start_sampling, warn)
        return metrics

    def _delay(self, duration_ms: int) -> AvailabilityFuture:
        future = AvailabilityFuture()
        # No mail: the future is completed on the loop's thread, and wakes the task by itself.
        self.environment.schedule_timer(duration_ms / 1_000, future.complete)
        return future

    def close(self) -> None:
        """Stop all clocks and timers, and close the keyed states; idempotent.

        Raises the first error, with notes about the others, after all were closed.
        """
        raise_first(errors_of(self._closers))


def _ends_keys(environment: TaskEnvironment, head: StreamOperator) -> bool:
    """Whether timers and state of the head end with each key of a sorted input."""
    return (
        environment.batch is not None
        and environment.batch.ends_keys
        and any(each is not None for each in head.sorted_inputs)
    )


def operator_id_of(operator: StreamOperator, vertex_id: str, index: int) -> bytes:
    """The id of the operator at ``index`` of a task's chain: its own, or one of vertex and index, which survives a
    restart of the job.
    """
    if operator.operator_id:
        return operator.operator_id
    return hashlib.blake2b(f"{vertex_id}/{index}".encode(), digest_size=OPERATOR_ID_BYTES).digest()
