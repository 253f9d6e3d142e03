"""Programs with operator and broadcast state, run in this process; some fail once, behind a checkpoint, and go on from
it.
"""

import threading
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, cast

import pytest

from flowlet.common import Time, Types
from flowlet.datastream import (
    AsyncDataStream,
    AsyncFunction,
    BroadcastProcessFunction,
    BroadcastStream,
    CheckpointedFunction,
    CheckpointListener,
    FlatMapFunction,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    MapFunction,
    ReduceFunction,
    RuntimeContext,
    RuntimeExecutionMode,
    SourceContext,
    SourceFunction,
    StreamExecutionEnvironment,
)
from flowlet.datastream.state import ListStateDescriptor, MapStateDescriptor, StateTtlConfig, ValueStateDescriptor
from flowlet.errors import JobExecutionError, JobGraphError
from tests.flowlet.client.jobs import ran
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

NUM_RECORDS = 900
RULES = MapStateDescriptor("rules", Types.STRING(), Types.LONG())


def test_a_bounded_job_does_not_wait_for_the_next_interval(surviving: StreamExecutionEnvironment) -> None:
    """The last checkpoint of the job is triggered when all tasks wait for it, not after an hour."""
    surviving.enable_checkpointing(3_600_000)

    tenfold = surviving.from_collection([1, 2, 3]).key_by(lambda value: value).map(lambda value: 10 * value)

    assert sorted(ran(tenfold)) == [10, 20, 30]


class Unwilling:
    """A value that no checkpoint can write until one was aborted."""

    aborted: ClassVar[list[int]] = []

    def __reduce__(self) -> tuple[type, tuple[()]]:
        if not Unwilling.aborted:
            raise OSError("not now")
        return Unwilling, ()


class KeepsUnwilling(KeyedProcessFunction, CheckpointListener):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.kept = runtime_context.get_state(ValueStateDescriptor("kept", Types.PICKLED_BYTE_ARRAY()))

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Iterator[int]:
        self.kept.update(Unwilling())
        yield value

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        pass

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        Unwilling.aborted.append(checkpoint_id)


def test_a_bounded_job_whose_last_checkpoint_fails_tries_it_again_at_once(
    surviving: StreamExecutionEnvironment,
) -> None:
    """The job tries it again a second later, not after an hour."""
    surviving.enable_checkpointing(3_600_000)
    surviving.get_checkpoint_config().set_tolerable_checkpoint_failure_number(1)
    Unwilling.aborted.clear()

    assert ran(surviving.from_collection([1]).key_by(lambda value: value).process(KeepsUnwilling())) == [1]
    assert Unwilling.aborted == [1]


class Numbers(SourceFunction, CheckpointedFunction, CheckpointListener):
    """Numbers from 0 on; fails once, when it has gone on behind a complete checkpoint that has a third of them."""

    def __init__(self, *, fails: bool = True) -> None:
        self.next = 0
        self.fails = fails
        self.log: list[Any] = []

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self.complete = threading.Event()
        self.wanted: int | None = None
        self.is_restored = context.is_restored()
        assert self.is_restored is (context.get_restored_checkpoint_id() is not None)
        self.position = context.get_operator_state_store().get_list_state(ListStateDescriptor("position", Types.LONG()))
        for position in self.position:
            self.next = position

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        assert context.get_checkpoint_timestamp() > 0
        self.position.update([self.next])
        if self.wanted is None and self.next >= NUM_RECORDS // 3:
            self.wanted = context.get_checkpoint_id()

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        if self.wanted is not None and checkpoint_id >= self.wanted:
            self.complete.set()

    def run(self, ctx: SourceContext) -> None:
        while self.next < NUM_RECORDS:
            if not self.is_restored and self.next == NUM_RECORDS // 3:
                assert self.complete.wait(PATIENCE_S)
            if self.fails and not self.is_restored and self.next == NUM_RECORDS // 2:
                raise RuntimeError("the first attempt fails")
            with ctx.get_checkpoint_lock():
                ctx.collect(self.next)
                self.next += 1


class Batches(FlatMapFunction, CheckpointedFunction):
    """Emits seven numbers at a time: those that wait are in its state."""

    def __init__(self, *, is_union: bool) -> None:
        self.is_union = is_union
        self.waiting: list[int] = []

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        store, descriptor = context.get_operator_state_store(), ListStateDescriptor("waiting", Types.LONG())
        self.state = store.get_union_list_state(descriptor) if self.is_union else store.get_list_state(descriptor)
        self.waiting = list(self.state)

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        self.state.update(self.waiting)

    def flat_map(self, value: int) -> Iterator[tuple[int, ...]]:
        self.waiting.append(value)
        if len(self.waiting) == 7:
            batch, self.waiting = tuple(self.waiting), []
            yield batch


@pytest.mark.parametrize("is_union", [False, True])
def test_list_state_of_a_source_and_of_a_function_go_on_from_a_checkpoint(
    is_union: bool, surviving: StreamExecutionEnvironment
) -> None:
    """Every number is there once, in batches of seven: nothing was emitted again, and no number that waited is lost."""
    batches = surviving.add_source(Numbers()).flat_map(Batches(is_union=is_union))

    results = ran(batches)

    assert results == [tuple(range(first, first + 7)) for first in range(0, NUM_RECORDS - 6, 7)]


class KeepsRules(BroadcastProcessFunction):
    """The first attempt alone sees the rules."""

    def process_element(self, value: int, ctx: BroadcastProcessFunction.ReadOnlyContext) -> Iterator[Any]:
        yield value, sorted(ctx.get_broadcast_state(RULES).items())

    def process_broadcast_element(self, value: Any, ctx: BroadcastProcessFunction.Context) -> None:
        ctx.get_broadcast_state(RULES).put(*value)


class OnceOnly(SourceFunction, CheckpointedFunction):
    """Rules that are never emitted again; then it waits for its end."""

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self.is_restored = context.is_restored()

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        """Store nothing: the function only notes whether it was restored."""

    def run(self, ctx: SourceContext) -> None:
        if not self.is_restored:
            with ctx.get_checkpoint_lock():
                ctx.collect(("limit", 5))
                ctx.collect(("size", 3))


def test_broadcast_state_goes_on_from_a_checkpoint(surviving: StreamExecutionEnvironment) -> None:
    """The rules came before the checkpoint; the numbers behind it still see them."""
    rules = surviving.add_source(OnceOnly()).broadcast(RULES)

    results = ran(surviving.add_source(Numbers()).connect(rules).process(KeepsRules()))

    assert [number for number, _ in results] == list(range(NUM_RECORDS))
    assert {str(rules) for number, rules in results if number > NUM_RECORDS // 2} == {"[('limit', 5), ('size', 3)]"}


class Rule(KeyedBroadcastProcessFunction):
    """Emits a key's numbers of the parity that the rules want, and how many the key had."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.waiting = runtime_context.get_list_state(ListStateDescriptor("waiting", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext) -> None:
        self.waiting.add(value[1])
        ctx.timer_service().register_event_time_timer(1)

    def process_broadcast_element(self, value: Any, ctx: KeyedBroadcastProcessFunction.Context) -> None:
        ctx.get_broadcast_state(RULES).put(*value)

    def on_timer(self, timestamp: int, ctx: KeyedBroadcastProcessFunction.OnTimerContext) -> Iterator[Any]:
        limit = ctx.get_broadcast_state(RULES)["limit"]
        yield ctx.get_current_key(), [number for number in self.waiting if number < limit]


@pytest.mark.parametrize("parallelism", [1, 3])
def test_every_subtask_sees_the_rules(parallelism: int) -> None:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)
    rules = env.from_collection([("limit", 100), ("limit", 20)]).set_parallelism(1).broadcast(RULES)
    numbers = env.from_collection([(number % 5, number) for number in range(40)]).key_by(lambda record: record[0])

    results = ran(numbers.connect(rules).process(Rule(), output_type=Types.PICKLED_BYTE_ARRAY()))

    assert sorted((key, sorted(numbers)) for key, numbers in results) == [
        (key, list(range(key, 20, 5))) for key in range(5)
    ]


def test_what_does_not_fit_is_refused_when_the_program_is_built(environment: StreamExecutionEnvironment) -> None:
    stream = environment.from_collection([1])
    keyed, expiring = stream.key_by(abs), MapStateDescriptor("expiring")
    expiring.enable_time_to_live(StateTtlConfig.new_builder(Time.seconds(1)).build())
    rules, wrong, other = stream.broadcast(RULES), cast("Any", "rules"), cast("Any", Batches(is_union=True))
    refused_calls: list[tuple[Callable[[], object], str]] = [
        (lambda: stream.broadcast(wrong), "broadcast() needs a MapStateDescriptor for each state, got 'rules'"),
        (lambda: stream.broadcast(RULES, RULES), "two descriptors of the name 'rules'"),
        (lambda: stream.broadcast(expiring), "broadcast state 'expiring' cannot have a time to live"),
        (lambda: stream.connect(rules).process(Rule()), "call key_by(...) before connect(...)"),
        (lambda: keyed.connect(rules).process(KeepsRules()), "needs a KeyedBroadcastProcessFunction"),
        (lambda: keyed.connect(rules).process(other), "process() needs a KeyedBroadcastProcessFunction here"),
        (
            lambda: StreamExecutionEnvironment().from_collection([1]).connect(rules),
            "two streams of the same environment",
        ),
    ]

    assert isinstance(rules, BroadcastStream)
    for call, reason in refused_calls:
        with pytest.raises(JobGraphError) as refused:
            call()
        assert reason in str(refused.value)


class Restored(MapFunction, CheckpointedFunction):
    """Says where its states come from."""

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self.order = ["initialize_state"]
        self.answers = context.is_restored(), context.get_restored_checkpoint_id()
        self.count = context.get_keyed_state_store().get_state(ValueStateDescriptor("count", Types.LONG()))

    def open(self, runtime_context: RuntimeContext) -> None:
        self.order.append("open")

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        """Store nothing: the function's keyed state is kept anyway."""

    def map(self, value: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        return value, self.count.value(), self.order, self.answers


def test_initialize_state_comes_before_open_and_gives_keyed_state_too(environment: StreamExecutionEnvironment) -> None:
    """The order holds in a job without checkpoints, too."""
    results = ran(environment.from_collection(["a", "b", "a"]).key_by(str).map(Restored()))

    order, answers = ["initialize_state", "open"], (False, None)
    assert results == [("a", 1, order, answers), ("b", 1, order, answers), ("a", 2, order, answers)]


def test_keyed_state_without_a_key_is_refused_in_initialize_state(environment: StreamExecutionEnvironment) -> None:
    with pytest.raises(JobExecutionError, match="keyed state needs a keyed stream") as failed:
        ran(environment.from_collection(["a"]).map(Restored()))

    assert "operator 'Map'" in str(failed.value)


class Wrong(MapFunction, CheckpointedFunction):
    def initialize_state(self, context: FunctionInitializationContext) -> None:
        raise ValueError("no such file")

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        """Store nothing."""

    def map(self, value: Any) -> Any:
        return value


def test_an_error_in_a_checkpoint_method_names_operator_and_method(environment: StreamExecutionEnvironment) -> None:
    with pytest.raises(JobExecutionError) as failed:
        ran(environment.from_collection(["a"]).map(Wrong()).name("wrong"))

    assert "operator 'wrong', subtask 1/1" in str(failed.value)
    assert "ValueError: no such file" in str(failed.value)
    assert "raised by initialize_state()" in str(failed.value.__cause__)


class SumWithState(ReduceFunction):
    """Numbers each call for its key."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.calls = runtime_context.get_state(ValueStateDescriptor("calls", Types.LONG()))

    def reduce(self, value1: Any, value2: Any) -> Any:
        self.calls.update((self.calls.value() or 0) + 1)
        return value1[0], value1[1] + value2[1], self.calls.value()


@pytest.mark.parametrize("is_chained", [True, False])
@pytest.mark.parametrize("mode", ["STREAMING", "BATCH"])
def test_a_reduce_function_has_keyed_state(
    environment: StreamExecutionEnvironment, mode: str, is_chained: bool
) -> None:
    """Keys that Python calls equal have each their own; the first record of a key calls nothing."""
    environment.set_runtime_mode(RuntimeExecutionMode[mode])
    if not is_chained:
        environment.disable_operator_chaining()
    records = environment.from_collection([("a", 1), (1, 1), (True, 1), ("a", 2), (1, 5), ("a", 3)]).map(
        lambda record: record
    )

    results = ran(records.key_by(lambda record: record[0]).reduce(SumWithState()))

    last = [(True, 1), ("a", 6, 2), (1, 6, 1)]
    if mode == "BATCH":
        assert sorted(map(str, results)) == sorted(map(str, last))
    else:
        running = [("a", 1), (1, 1), (True, 1), ("a", 3, 1), (1, 6, 1), ("a", 6, 2)]
        assert list(map(str, results)) == list(map(str, running))


class Looks(AsyncFunction, CheckpointedFunction):
    """Counts its restarts."""

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self.starts = context.get_operator_state_store().get_list_state(ListStateDescriptor("starts", Types.LONG()))
        self.is_restored = context.is_restored()

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        if not self.is_restored:
            self.starts.update([1])

    async def async_invoke(self, value: int) -> list[Any]:
        return [(value, list(self.starts) if self.is_restored else [])]


def test_an_async_function_has_operator_state(surviving: StreamExecutionEnvironment) -> None:
    results = ran(AsyncDataStream.ordered_wait(surviving.add_source(Numbers()), Looks(), Time.seconds(60), 100))

    assert [number for number, _ in results] == list(range(NUM_RECORDS))
    assert results[-1] == (NUM_RECORDS - 1, [1])


class Listens(KeyedProcessFunction, CheckpointListener):
    """Emits the checkpoints that it heard of."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.heard: list[int] = []

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.heard.append(checkpoint_id)

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        yield list(self.heard)


def test_functions_hear_of_complete_checkpoints(surviving: StreamExecutionEnvironment) -> None:
    """A function hears of checkpoints in rising order, of each once; the source goes on only when one is complete."""
    results = ran(surviving.add_source(Numbers(fails=False)).key_by(lambda number: 0).process(Listens()))

    assert results[0] == []
    heard = results[-1]
    assert heard == sorted(set(heard))
    assert heard


def test_a_source_function_keeps_its_position_in_one_way(environment: StreamExecutionEnvironment) -> None:
    class Both(Numbers):
        def restore_position(self, position: Any) -> None:
            """Restore nothing."""

    with pytest.raises(JobGraphError, match="keep its position in one way"):
        ran(environment.add_source(Both()))
