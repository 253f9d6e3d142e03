"""Process functions, and functions of two streams.

Side:   pure.  An instance is made in the user's program, pickled, and called on the thread of one task.
Source: PyFlink ``pyflink.datastream.functions``, which exports them, too.
Absent: window functions.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic

from flowlet.datastream.user_functions.argument_checks import IN1, IN2, KEY, OUT
from flowlet.datastream.user_functions.function import Function

if TYPE_CHECKING:
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
        """See ``ProcessFunction.process_element``."""

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
    """A ``KeyedProcessFunction`` on two streams with the same keys."""

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
    """What functions of a stream and a broadcast stream have in common."""

    class BaseContext(ABC):
        """The context of the present record; not valid afterwards."""

        @abstractmethod
        def timestamp(self) -> int | None:
            """Event time of the record or timer in milliseconds since the epoch; None if it has none."""

        @abstractmethod
        def current_processing_time(self) -> int:
            """What the clock shows, in milliseconds since the epoch."""

        @abstractmethod
        def current_watermark(self) -> int:
            """The event time that both streams have reached."""

    class Context(BaseContext):
        """The context of a record of the broadcast stream."""

        @abstractmethod
        def get_broadcast_state(self, state_descriptor: "MapStateDescriptor") -> "BroadcastState[Any, Any]":
            """The broadcast state of a descriptor that ``broadcast()`` got, to read and to change.

            Every subtask sees every record of the broadcast stream and must make the same changes.
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

    class ReadOnlyContext(BaseBroadcastProcessFunction.ReadOnlyContext):
        """The context of a record of the keyed stream."""

        @abstractmethod
        def timer_service(self) -> "TimerService":
            """The clock, and the timers of the present key."""

        @abstractmethod
        def get_current_key(self) -> Any:
            """The key of the record or timer."""

    class OnTimerContext(ReadOnlyContext):
        """The context of a timer that fires."""

        @abstractmethod
        def time_domain(self) -> "TimeDomain":
            """Whether the timer fires by event time or by processing time."""

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
