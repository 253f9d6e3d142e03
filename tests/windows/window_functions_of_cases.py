"""Functions and objects of a user's program that carry out cases.

Side:   pure.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from flowlet.common import Time
from flowlet.datastream import (
    AggregateFunction,
    AllWindowFunction,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    RuntimeContext,
    WindowFunction,
)
from flowlet.datastream.state import ReducingState, ReducingStateDescriptor, ValueStateDescriptor
from flowlet.datastream.window import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountEvictor,
    CountSlidingWindowAssigner,
    CountTrigger,
    CountTumblingWindowAssigner,
    CountWindow,
    DeltaEvictor,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindows,
    NeverTrigger,
    ProcessingTimeSessionWindows,
    ProcessingTimeTrigger,
    PurgingTrigger,
    SessionWindowTimeGapExtractor,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TimeEvictor,
    TimeWindow,
    Trigger,
    TriggerResult,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from flowlet.datastream.window.evictors import Evictor
from flowlet.datastream.window.window_assigners import WindowAssigner
from flowlet.datastream.window.window_spec import WindowSpec
from tests.windows import window_cases as cases


def span_of(window: Any) -> tuple[Any, ...]:
    """Return a window in the words of the reference."""
    if isinstance(window, TimeWindow):
        return "time", window.start, window.end
    return ("count", window.id) if isinstance(window, CountWindow) else ("global",)


class Gap(SessionWindowTimeGapExtractor):
    def __init__(self, gap: int) -> None:
        self.gap = gap

    def extract(self, element: Any) -> int:
        return self.gap + int(element[2]) % 3


class ThresholdTrigger(Trigger[Any, Any]):
    """Fires when the numbers of the records add up to a limit; with ``waits`` at the end of the window, too."""

    def __init__(self, limit: int, *, waits: bool) -> None:
        self.limit = limit
        self.waits = waits
        self.descriptor = ReducingStateDescriptor("sum", plus)

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Trigger.TriggerContext) -> TriggerResult:
        if self.waits:
            if window.max_timestamp() <= ctx.get_current_watermark():
                return TriggerResult.FIRE
            ctx.register_event_time_timer(window.max_timestamp())
        total = self.total(ctx)
        total.add(element[2])
        if total.get() < self.limit:
            return TriggerResult.CONTINUE
        total.clear()
        return TriggerResult.FIRE

    def on_event_time(self, time: int, window: Any, ctx: Trigger.TriggerContext) -> TriggerResult:
        return TriggerResult.FIRE if self.waits and time == window.max_timestamp() else TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Any, ctx: Trigger.TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Any, ctx: Trigger.OnMergeContext) -> None:
        ctx.merge_partitioned_state(self.descriptor)
        if self.waits and window.max_timestamp() > ctx.get_current_watermark():
            ctx.register_event_time_timer(window.max_timestamp())

    def clear(self, window: Any, ctx: Trigger.TriggerContext) -> None:
        self.total(ctx).clear()
        ctx.delete_event_time_timer(window.max_timestamp())

    def total(self, ctx: Trigger.TriggerContext) -> ReducingState[int]:
        state = ctx.get_partitioned_state(self.descriptor)
        assert isinstance(state, ReducingState)
        return state


def plus(one: int, other: int) -> int:
    return one + other


def assigner_of(assigner: cases.Assigner) -> WindowAssigner[Any, Any]:
    is_event_time = assigner.domain == cases.EVENT
    size, slide, offset = (Time.milliseconds(each) for each in (assigner.size, assigner.slide, assigner.offset))
    match assigner.kind:
        case "tumbling":
            return (TumblingEventTimeWindows if is_event_time else TumblingProcessingTimeWindows).of(size, offset)
        case "sliding":
            return (SlidingEventTimeWindows if is_event_time else SlidingProcessingTimeWindows).of(size, slide, offset)
        case "session":
            return (EventTimeSessionWindows if is_event_time else ProcessingTimeSessionWindows).with_gap(size)
        case "dynamic":
            return (EventTimeSessionWindows if is_event_time else ProcessingTimeSessionWindows).with_dynamic_gap(
                Gap(assigner.size)
            )
        case "count" if assigner.slide:
            return CountSlidingWindowAssigner(assigner.size, assigner.slide)
        case "count":
            return CountTumblingWindowAssigner(assigner.size)
        case _:
            return GlobalWindows.create()


def trigger_of(trigger: cases.Trigger, assigner: WindowAssigner[Any, Any]) -> Trigger[Any, Any]:
    is_event_time = trigger.domain == cases.EVENT
    interval = Time.milliseconds(trigger.number)
    made: Trigger[Any, Any]
    match trigger.kind:
        case "default":
            return assigner.get_default_trigger(None)
        case "event":
            made = EventTimeTrigger.create()
        case "processing":
            made = ProcessingTimeTrigger.create()
        case "count":
            made = CountTrigger.of(trigger.number)
        case "continuous":
            made = (ContinuousEventTimeTrigger if is_event_time else ContinuousProcessingTimeTrigger).of(interval)
        case "threshold":
            made = ThresholdTrigger(trigger.number, waits=is_event_time)
        case _:
            made = NeverTrigger()
    return PurgingTrigger.of(made) if trigger.purges else made


def distance(one: Any, other: Any) -> int:
    return abs(int(one[2]) - int(other[2]))


def evictor_of(evictor: cases.Evictor) -> Evictor[Any, Any]:
    match evictor.kind:
        case "count":
            return CountEvictor.of(evictor.number, evictor.is_after)
        case "time":
            return TimeEvictor.of(Time.milliseconds(evictor.number), evictor.is_after)
        case _:
            return DeltaEvictor.of(evictor.number, distance, evictor.is_after)


def ids_of(record: Any) -> tuple[int, ...]:
    return record[1] if isinstance(record[1], tuple) else (record[1],)


def joined(one: Any, other: Any) -> Any:
    """The ids of both, in order: associative, and not commutative."""
    return one[0], ids_of(one) + ids_of(other), other[2]


class Ids(AggregateFunction):
    """A function whose accumulator is changed in place."""

    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: Any, accumulator: list[int]) -> list[int]:
        accumulator.append(value[1])
        return accumulator

    def get_result(self, accumulator: list[int]) -> Any:
        return "aggregate", tuple(accumulator)

    def merge(self, acc_a: list[int], acc_b: list[int]) -> list[int]:
        acc_a.extend(acc_b)
        return acc_a


def as_reduced(record: Any) -> Any:
    return record[0], ids_of(record), record[2]


class Process(ProcessWindowFunction[Any, Any, Any, Any]):
    """``kind``: process, reduce_process or stateful."""

    def __init__(self, kind: str, *, merges: bool) -> None:
        self.kind = kind
        self.merges = merges

    def open(self, runtime_context: RuntimeContext) -> None:
        self.descriptor = ValueStateDescriptor("evaluations")
        self.total = runtime_context.get_state(ValueStateDescriptor("all evaluations"))

    def process(self, key: Any, context: ProcessWindowFunction.Context[Any], elements: Iterable[Any]) -> Iterator[Any]:
        records, span = list(elements), span_of(context.window())
        match self.kind:
            case "reduce_process":
                (record,) = records
                yield key, span, as_reduced(record), context.current_watermark()
            case "process":
                ids = tuple(record[1] for record in records)
                yield key, span, ids, context.current_watermark()
                yield key, len(ids)
            case _:
                yield key, span, tuple(record[1] for record in records), self.in_window(context), self.overall(context)

    def in_window(self, context: Any) -> int:
        if self.merges:
            return 0
        state = context.window_state().get_state(self.descriptor)
        state.update((state.value() or 0) + 1)
        return int(state.value())

    def overall(self, context: Any) -> int:
        assert context.global_state().get_state(ValueStateDescriptor("all evaluations")) is self.total
        self.total.update((self.total.value() or 0) + 1)
        return int(self.total.value())

    def clear(self, context: Any) -> None:
        if not self.merges:
            context.window_state().get_state(self.descriptor).clear()


class Apply(WindowFunction[Any, Any, Any, Any]):
    def __init__(self, kind: str) -> None:
        self.kind = kind

    def apply(self, key: Any, window: Any, inputs: Iterable[Any]) -> list[Any]:
        records = list(inputs)
        if self.kind == "aggregate_apply":
            return [(key, span_of(window), records[0])]
        return [(key, span_of(window), tuple(record[1] for record in records))]


class ProcessAll(ProcessAllWindowFunction[Any, Any, Any]):
    """A ``Process`` for the key 0, which the function itself is not given."""

    def __init__(self, kind: str, *, merges: bool) -> None:
        self.inner = Process(kind, merges=merges)

    def open(self, runtime_context: RuntimeContext) -> None:
        self.inner.open(runtime_context)

    def process(self, context: Any, elements: Iterable[Any]) -> Iterator[Any]:
        return self.inner.process(0, context, elements)

    def clear(self, context: Any) -> None:
        self.inner.clear(context)


class ApplyAll(AllWindowFunction[Any, Any, Any]):
    def __init__(self, kind: str) -> None:
        self.inner = Apply(kind)

    def apply(self, window: Any, inputs: Iterable[Any]) -> list[Any]:
        return self.inner.apply(0, window, inputs)


def spec_of(case: cases.Case) -> WindowSpec:
    """The windows of a case, as a windowed stream describes them."""
    assigner = assigner_of(case.assigner)
    combine: Any = {"re": joined, "ag": Ids()}.get(case.function[:2])
    function: Any = None
    if case.function in ("reduce_process", "process", "stateful"):
        function = (Process if case.is_keyed else ProcessAll)(case.function, merges=case.assigner.merges)
    elif case.function in ("aggregate_apply", "apply"):
        function = (Apply if case.is_keyed else ApplyAll)(case.function)
    return WindowSpec(
        assigner,
        trigger_of(case.trigger, assigner),
        None if case.evictor is None else evictor_of(case.evictor),
        case.lateness,
        "late" if case.has_late_output else None,
        combine,
        function,
        is_keyed=case.is_keyed,
    )
