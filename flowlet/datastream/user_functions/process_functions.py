"""Functions that see more than a record: process functions, functions of two streams, of the records that a join or
co-group brings together, of the records of a window, and of an asynchronous call.

Side:   pure.  An instance is made in the user's program, pickled, and called on the thread of one task.
Source: PyFlink ``pyflink.datastream.functions``, which exports them, too; Flink ``JoinFunction``, ``FlatJoinFunction``,
        ``CoGroupFunction``, ``ProcessJoinFunction``, which PyFlink lacks, with names in the style of Python; results
        are returned or yielded instead of given to a collector.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic

from flowlet.datastream.user_functions.argument_checks import IN, IN1, IN2, KEY, OUT, W2, W
from flowlet.datastream.user_functions.function import Function
from flowlet.datastream.user_functions.window_clock import CurrentWindow
from flowlet.errors import FlowletError
from netstack.late import dataclass

if TYPE_CHECKING:
    from flowlet.datastream.states.runtime_context import KeyedStateStore
    from flowlet.datastream.states.state_descriptors import (
        BroadcastState,
        MapStateDescriptor,
        ReadOnlyBroadcastState,
        StateDescriptor,
    )
    from flowlet.datastream.time_domain import TimeDomain
    from flowlet.datastream.timerservice import TimerService


class CoMapFunction(Function):
    """Returns one record for each record of either of two streams."""

    @abstractmethod
    def map1(self, value: Any) -> Any:
        """The record that replaces a record of the first stream."""

    @abstractmethod
    def map2(self, value: Any) -> Any:
        """The record that replaces a record of the second stream."""


class CoFlatMapFunction(Function):
    """Returns any number of records for each record of either of two streams."""

    @abstractmethod
    def flat_map1(self, value: Any) -> Iterable[Any] | None:
        """The records that replace a record of the first stream; often a generator, None for none."""

    @abstractmethod
    def flat_map2(self, value: Any) -> Iterable[Any] | None:
        """The records that replace a record of the second stream; often a generator, None for none."""


class _Context(ABC):
    """The context of the present record; not valid afterwards."""

    @abstractmethod
    def timestamp(self) -> int | None:
        """Event time of the record or timer in milliseconds since the epoch; None if it has none."""

    @abstractmethod
    def timer_service(self) -> "TimerService":
        """The clock, and the timers of the present key."""


class _KeyedContext(_Context):
    """The context of the present record and its key."""

    @abstractmethod
    def get_current_key(self) -> Any:
        """The key of the record or timer."""


class _OnTimerContext(_KeyedContext):
    """The context of a timer that fires."""

    @abstractmethod
    def time_domain(self) -> "TimeDomain":
        """Whether the timer fires by event time or by processing time."""


class ProcessFunction(Function):
    """Returns any number of records for each record, to the main output or to side outputs; sees timestamps."""

    class Context(_Context):
        """The context of the present record."""

    @abstractmethod
    def process_element(self, value: Any, ctx: "ProcessFunction.Context") -> Iterable[Any] | None:
        """An iterable of the records that replace ``value``, often a generator; ``(tag, value)`` goes to the side
        output of a tag.
        """


class KeyedProcessFunction(Function):
    """A ``ProcessFunction`` on a keyed stream, with timers."""

    class Context(_KeyedContext):
        """The context of the present record."""

    class OnTimerContext(_OnTimerContext):
        """The context of a timer that fires."""

    @abstractmethod
    def process_element(self, value: Any, ctx: "KeyedProcessFunction.Context") -> Iterable[Any] | None:
        """An iterable of the records that replace ``value``, often a generator; ``(tag, value)`` goes to the side
        output of a tag.
        """

    def on_timer(self, timestamp: int, ctx: "KeyedProcessFunction.OnTimerContext") -> Iterable[Any] | None:
        """The records that a timer emits, as in ``process_element``."""
        return None


class CoProcessFunction(Function):
    """A ``ProcessFunction`` on two streams."""

    class Context(_Context):
        """The context of the present record."""

    @abstractmethod
    def process_element1(self, value: Any, ctx: "CoProcessFunction.Context") -> Iterable[Any] | None:
        """The records that replace a record of the first stream."""

    @abstractmethod
    def process_element2(self, value: Any, ctx: "CoProcessFunction.Context") -> Iterable[Any] | None:
        """The records that replace a record of the second stream."""


class KeyedCoProcessFunction(Function):
    """A ``KeyedProcessFunction`` on two streams that are keyed alike."""

    class Context(_KeyedContext):
        """The context of the present record."""

    class OnTimerContext(_OnTimerContext):
        """The context of a timer that fires."""

    @abstractmethod
    def process_element1(self, value: Any, ctx: "KeyedCoProcessFunction.Context") -> Iterable[Any] | None:
        """The records that replace a record of the first stream."""

    @abstractmethod
    def process_element2(self, value: Any, ctx: "KeyedCoProcessFunction.Context") -> Iterable[Any] | None:
        """The records that replace a record of the second stream."""

    def on_timer(self, timestamp: int, ctx: "KeyedCoProcessFunction.OnTimerContext") -> Iterable[Any] | None:
        """The records that a timer emits."""
        return None


class BaseBroadcastProcessFunction(Function):
    """The contexts that functions of a stream and a broadcast stream share."""

    class BaseContext(ABC):
        """The context of the present record; not valid afterwards."""

        @abstractmethod
        def timestamp(self) -> int | None:
            """Event time of the record or timer in milliseconds since the epoch; None if it has none."""

        @abstractmethod
        def current_processing_time(self) -> int:
            """The time of the clock, in milliseconds since the epoch."""

        @abstractmethod
        def current_watermark(self) -> int:
            """The event time that both streams have reached."""

    class Context(BaseContext):
        """The context of a record of the broadcast stream."""

        @abstractmethod
        def get_broadcast_state(self, state_descriptor: "MapStateDescriptor") -> "BroadcastState[Any, Any]":
            """The broadcast state of a descriptor that ``broadcast()`` got, to read and to change.

            Every subtask sees every record of the broadcast stream, and all subtasks must make equal changes.
            """

    class ReadOnlyContext(BaseContext):
        """The context of a record of the other stream."""

        @abstractmethod
        def get_broadcast_state(self, state_descriptor: "MapStateDescriptor") -> "ReadOnlyBroadcastState[Any, Any]":
            """The broadcast state of a descriptor that ``broadcast()`` got, to read."""


class BroadcastProcessFunction(BaseBroadcastProcessFunction, Generic[IN1, IN2, OUT]):
    """A function of a stream and a broadcast stream.  Results are as those of a ``ProcessFunction``."""

    class Context(BaseBroadcastProcessFunction.Context):
        """The context of a record of the broadcast stream."""

    class ReadOnlyContext(BaseBroadcastProcessFunction.ReadOnlyContext):
        """The context of a record of the other stream."""

    @abstractmethod
    def process_element(self, value: IN1, ctx: "BroadcastProcessFunction.ReadOnlyContext") -> Iterable[OUT] | None:
        """The records that replace a record of the stream that is not broadcast."""

    @abstractmethod
    def process_broadcast_element(self, value: IN2, ctx: "BroadcastProcessFunction.Context") -> Iterable[OUT] | None:
        """The records that replace a record of the broadcast stream, which every subtask sees."""


class KeyedBroadcastProcessFunction(BaseBroadcastProcessFunction, Generic[KEY, IN1, IN2, OUT]):
    """A function of a keyed stream and a broadcast stream, with timers and keyed state."""

    class Context(BaseBroadcastProcessFunction.Context):
        """The context of a record of the broadcast stream, which has no key."""

        @abstractmethod
        def apply_to_keyed_state(
            self, state_descriptor: "StateDescriptor", function: Callable[[Any, Any], None]
        ) -> None:
            """Call ``function(key, state)`` for every key of this subtask that has such a state; it may change the
            state.

            Not in PyFlink; Flink ``KeyedBroadcastProcessFunction.Context.applyToKeyedState``.
            """

    class ReadOnlyContext(BaseBroadcastProcessFunction.ReadOnlyContext, _KeyedContext):
        """The context of a record of the keyed stream."""

    class OnTimerContext(ReadOnlyContext, _OnTimerContext):
        """The context of a timer that fires."""

    @abstractmethod
    def process_element(self, value: IN1, ctx: "KeyedBroadcastProcessFunction.ReadOnlyContext") -> Iterable[OUT] | None:
        """The records that replace a record of the keyed stream."""

    @abstractmethod
    def process_broadcast_element(
        self, value: IN2, ctx: "KeyedBroadcastProcessFunction.Context"
    ) -> Iterable[OUT] | None:
        """The records that replace a record of the broadcast stream, which every subtask sees."""

    def on_timer(self, timestamp: int, ctx: "KeyedBroadcastProcessFunction.OnTimerContext") -> Iterable[OUT] | None:
        """The records that a timer emits."""
        return None


class JoinFunction(Function):
    """Returns one record for each pair."""

    @abstractmethod
    def join(self, first: Any, second: Any) -> Any:
        """The record that a record of the first stream and one of the second become."""


class FlatJoinFunction(Function):
    """Returns any number of records for each pair."""

    @abstractmethod
    def join(self, first: Any, second: Any) -> Iterable[Any] | None:
        """The records that a pair becomes; often a generator, None for none."""


class CoGroupFunction(Function):
    """Sees all records of both streams that have one key and lie in one window."""

    @abstractmethod
    def co_group(self, first: Iterable[Any], second: Iterable[Any]) -> Iterable[Any] | None:
        """The records that two groups become; one of them may be empty, so this makes outer joins, too."""


class ProcessJoinFunction(Function):
    """Returns any number of records for each pair of an interval join, to the main output or to side outputs; sees
    timestamps.
    """

    @dataclass(slots=True, eq=False)
    class Context:
        """The context of the present pair; not valid afterwards: there is one object for all pairs."""

        is_active: bool = False
        left_timestamp: int = 0
        right_timestamp: int = 0
        timestamp: int = 0

        def get_left_timestamp(self) -> int:
            """Event time of the left record in milliseconds since the epoch."""
            self._check()
            return self.left_timestamp

        def get_right_timestamp(self) -> int:
            """Event time of the right record."""
            self._check()
            return self.right_timestamp

        def get_timestamp(self) -> int:
            """The later of both: the timestamp of the results."""
            self._check()
            return self.timestamp

        def _check(self) -> None:
            if not self.is_active:
                raise FlowletError("the context of a join can only be used while its pair is processed")

    @abstractmethod
    def process_element(self, left: Any, right: Any, ctx: "ProcessJoinFunction.Context") -> Iterable[Any] | None:
        """An iterable of the records that the pair becomes, often a generator; ``(tag, value)`` goes to the side output
        of a tag.
        """


class WindowFunction(Function, Generic[IN, OUT, KEY, W]):
    """Returns any number of records for each window of a key."""

    @abstractmethod
    def apply(self, key: KEY, window: W, inputs: Iterable[IN]) -> Iterable[OUT]:
        """The results of a window, from its records, or from the one record into which they were combined."""


class AllWindowFunction(Function, Generic[IN, OUT, W]):
    """Returns any number of records for each window of a stream without keys."""

    @abstractmethod
    def apply(self, window: W, inputs: Iterable[IN]) -> Iterable[OUT]:
        """The results of a window, from its records, or from the one record into which they were combined."""


class ProcessWindowFunction(Function, Generic[IN, OUT, KEY, W]):
    """A ``WindowFunction`` with a context: clock, watermark and state."""

    class Context(CurrentWindow, Generic[W2]):
        """The window that is evaluated; valid during the call."""

        current_window: W2

        def window(self) -> W2:
            """The window."""
            return self.current_window

        def current_processing_time(self) -> int:
            """The time of the clock, in milliseconds since the epoch."""
            return self._timers.current_processing_time()

        def current_watermark(self) -> int:
            """The event time that the operator has reached."""
            return self._timers.current_watermark()

        def window_state(self) -> "KeyedStateStore":
            """The store of the states of this key and window, which ``clear`` must clear; not for windows that merge,
            such as sessions.
            """
            self._states.enter(self.current_window)
            return self._per_window

        def global_state(self) -> "KeyedStateStore":
            """The store of the states of this key, which all its windows share."""
            return self._runtime

    @abstractmethod
    def process(self, key: KEY, context: "ProcessWindowFunction.Context[W]", elements: Iterable[IN]) -> Iterable[OUT]:
        """The results of a window; ``(tag, value)`` goes to the side output of a tag."""

    def clear(self, context: "ProcessWindowFunction.Context[W]") -> None:
        """Clear the states of the window, which ends."""


class ProcessAllWindowFunction(Function, Generic[IN, OUT, W]):
    """An ``AllWindowFunction`` with a context: clock, watermark and state."""

    class Context(ProcessWindowFunction.Context[W2]):
        """The window that is evaluated; valid during the call."""

    @abstractmethod
    def process(self, context: "ProcessAllWindowFunction.Context[W]", elements: Iterable[IN]) -> Iterable[OUT]:
        """The results of a window; ``(tag, value)`` goes to the side output of a tag."""

    def clear(self, context: "ProcessAllWindowFunction.Context[W]") -> None:
        """Clear the states of the window, which ends."""


class AsyncFunction(Function, Generic[IN, OUT]):
    """Returns any number of records for each record, from a coroutine; many of them run at once.

    The coroutines of all tasks of a process share one event loop, so they must not block.  ``open``, ``close`` and
    ``timeout`` run on the task's thread; written with ``async def``, they run on that loop, where clients with sessions
    should be made.
    """

    @abstractmethod
    async def async_invoke(self, value: IN) -> list[OUT]:
        """The records that replace ``value``, as a list; ``[]`` for none.

        An exception fails the job, unless a retry strategy asks for another attempt.
        """

    def timeout(self, value: IN) -> list[OUT]:
        """The records that replace ``value`` after the timeout; the coroutine was cancelled before.

        Raises:
            TimeoutError: unless overridden; it fails the job.
        """
        raise TimeoutError(f"Async function call has timed out for input: {value}")
