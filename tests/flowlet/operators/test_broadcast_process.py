"""Functions of a stream and a broadcast stream: who may change the state, which key is the current one, what a restart
brings back.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flowlet.common import Types
from flowlet.datastream import BroadcastProcessFunction, KeyedBroadcastProcessFunction, OutputTag, RuntimeContext
from flowlet.datastream.state import MapStateDescriptor, ValueStateDescriptor
from flowlet.errors import UserFunctionError
from flowlet.operators.co_functions import BroadcastProcessOperator
from flowlet.testing import TwoInputOperatorHarness

RULES = MapStateDescriptor("rules", Types.STRING(), Types.LONG())
COUNT = ValueStateDescriptor("count", Types.LONG())
CHANGED = OutputTag("changed")


def first_field(record: Any) -> Any:
    return record[0]


class Above(BroadcastProcessFunction):
    """Emits numbers above the limit that the broadcast stream set."""

    def process_element(self, value: int, ctx: BroadcastProcessFunction.ReadOnlyContext) -> Iterator[Any]:
        if value > (ctx.get_broadcast_state(RULES).get("limit") or 0):
            yield value, ctx.timestamp(), ctx.current_watermark(), ctx.current_processing_time()

    def process_broadcast_element(self, value: int, ctx: BroadcastProcessFunction.Context) -> Iterator[Any]:
        yield CHANGED, (ctx.get_broadcast_state(RULES).get("limit"), value)
        ctx.get_broadcast_state(RULES).put("limit", value)


class CountUpTo(KeyedBroadcastProcessFunction):
    """Counts per key; a record of the broadcast stream lowers all counts, a timer tells one."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(COUNT)

    def process_element(self, value: Any, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext) -> Iterator[Any]:
        self.count.update((self.count.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(10)
        yield ctx.get_current_key(), self.count.value(), sorted(ctx.get_broadcast_state(RULES))

    def process_broadcast_element(self, value: Any, ctx: KeyedBroadcastProcessFunction.Context) -> None:
        ctx.get_broadcast_state(RULES)[value] = 1
        ctx.apply_to_keyed_state(COUNT, lambda key, count: count.update(count.value() + (100 if key is True else 10)))

    def on_timer(self, timestamp: int, ctx: KeyedBroadcastProcessFunction.OnTimerContext) -> Iterator[Any]:
        yield "timer", timestamp, ctx.get_current_key(), self.count.value(), sorted(ctx.get_broadcast_state(RULES))


class Does(KeyedBroadcastProcessFunction):
    """A function that does what the test says, on either side, and in a timer."""

    def __init__(
        self,
        element: Callable[[Any], Any] = lambda _: None,
        broadcast: Callable[[Any], Any] = lambda _: None,
        timer: Callable[[Any], Any] = lambda _: None,
    ) -> None:
        self.element, self.broadcast, self.timer = element, broadcast, timer

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(COUNT)

    def process_element(self, value: Any, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext) -> None:
        ctx.timer_service().register_event_time_timer(10)
        self.element(ctx)

    def process_broadcast_element(self, value: Any, ctx: KeyedBroadcastProcessFunction.Context) -> None:
        self.broadcast(self if value == "function" else ctx)

    def on_timer(self, timestamp: int, ctx: KeyedBroadcastProcessFunction.OnTimerContext) -> None:
        self.timer(ctx)


def test_elements_read_what_the_broadcast_stream_wrote() -> None:
    """Times are those of the record, of both watermarks and of the clock; side outputs are as those of any process
    function.
    """
    with TwoInputOperatorHarness(BroadcastProcessOperator(Above(), [RULES]), now_ms=7) as harness:
        harness.process_element1(5, timestamp=1)
        harness.process_element2(5)
        harness.process_element2(6)
        harness.process_watermark1(3)
        harness.process_watermark2(2)
        harness.process_element1(6)
        harness.process_element1(7, timestamp=4)

        assert [value[:2] for value in harness.values] == [(5, 1), (7, 4)]
        assert harness.values[1] == (7, 4, 2, 7)
        assert [record.value for record in harness.side_output(CHANGED)] == [(None, 5), (5, 6)]
        assert harness.watermarks == [2]


def test_keyed_state_timers_and_changes_of_the_state_of_all_keys() -> None:
    """``apply_to_keyed_state`` sees each key once, as the user knows it."""
    with TwoInputOperatorHarness(BroadcastProcessOperator(CountUpTo(), [RULES], first_field)) as harness:
        for key in ("a", "b", True, "a"):
            harness.process_element1((key,), timestamp=1)
        harness.process_element2("rule")
        harness.process_element1(("a",), timestamp=1)
        harness.process_both_watermarks(10)

        assert harness.values == [
            *[("a", 1, []), ("b", 1, []), (True, 1, []), ("a", 2, [])],
            ("a", 13, ["rule"]),
            *[("timer", 10, "a", 13, ["rule"]), ("timer", 10, "b", 11, ["rule"]), ("timer", 10, True, 101, ["rule"])],
        ]


def test_a_restart_brings_back_both_kinds_of_state() -> None:
    def operator() -> BroadcastProcessOperator:
        return BroadcastProcessOperator(CountUpTo(), [RULES], first_field)

    with TwoInputOperatorHarness(operator()) as before:
        before.process_element1(("a",), timestamp=1)
        before.process_element2("kept")
        snapshot = before.snapshot()
        before.process_element2("lost")
    after = TwoInputOperatorHarness(operator())
    after.initialize_state(snapshot)
    with after:
        after.process_element1(("a",), timestamp=1)

        assert after.values == [("a", 12, ["kept"])]


@pytest.mark.parametrize(
    "change", ["put('x', 1)", "put_all({})", "remove('x')", "clear()", "__setitem__('x', 1)", "__delitem__('x')"]
)
@pytest.mark.parametrize("side", ["element", "timer"])
def test_only_the_broadcast_side_may_change_the_state(change: str, side: str) -> None:
    def do(ctx: Any) -> None:
        eval(f"ctx.get_broadcast_state(RULES).{change}", {"ctx": ctx, "RULES": RULES})

    harness = TwoInputOperatorHarness(BroadcastProcessOperator(Does(**{side: do}), [RULES], first_field))

    def run_both() -> None:
        harness.process_element1(("a",), timestamp=1)
        harness.process_both_watermarks(10)

    with harness, pytest.raises(UserFunctionError) as failed:
        run_both()

    assert "broadcast state 'rules' can only be changed in process_broadcast_element()" in str(failed.value.__cause__)


def test_there_is_no_current_key_while_a_broadcast_record_is_processed() -> None:
    """Keyed state of the last element's key must not be changed by accident; ``apply_to_keyed_state`` leaves no key
    behind.
    """

    def use(function: Any) -> None:
        function.count.update(1)

    def apply(ctx: Any) -> None:
        if isinstance(ctx, Does):
            use(ctx)
        else:
            ctx.apply_to_keyed_state(COUNT, lambda key, state: state.update(1))

    with TwoInputOperatorHarness(BroadcastProcessOperator(Does(broadcast=apply), [RULES], first_field)) as harness:
        harness.process_element1(("a",), timestamp=1)
        with pytest.raises(UserFunctionError) as failed:
            harness.process_chunk2(["context", "function"])

    assert "state 'count' was used without a current key" in str(failed.value.__cause__)


@pytest.mark.parametrize(
    ("do", "reason"),
    [
        (
            lambda ctx: ctx.get_broadcast_state(MapStateDescriptor("other")),
            "no broadcast state 'other': broadcast() got the descriptors of 'rules'",
        ),
        (lambda ctx: ctx.apply_to_keyed_state("count", print), "needs the descriptor of a keyed state, got 'count'"),
    ],
)
def test_an_unknown_state_is_refused(do: Callable[[Any], Any], reason: str) -> None:
    harness = TwoInputOperatorHarness(BroadcastProcessOperator(Does(broadcast=do), [RULES], first_field))

    with harness, pytest.raises(UserFunctionError) as failed:
        harness.process_element2("context")

    assert reason in str(failed.value.__cause__)
