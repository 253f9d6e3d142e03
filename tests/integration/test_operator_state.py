"""A job with list, union list and broadcast state loses a TaskManager by ``kill -9``: its rules and counts equal those
of a run without it.
"""

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from flowlet.common import Configuration
from flowlet.common.typeinfo import Types
from flowlet.datastream import (
    BroadcastProcessFunction,
    CheckpointedFunction,
    CloseableIterator,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    MapFunction,
    RuntimeContext,
    SourceContext,
    SourceFunction,
    StreamExecutionEnvironment,
)
from flowlet.datastream.state import ListStateDescriptor, MapStateDescriptor
from flowlet.tm.taskmanager_process import PROCESS_NAME
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

NUM_RECORDS = 20_000
PACE_S = 0.1  # of 1000 records: barriers pass between them
CHECKPOINT_MS = 100
RULES = MapStateDescriptor("rules", Types.STRING(), Types.LONG())
POSITION = ListStateDescriptor("position", Types.LONG())
COUNTS = ListStateDescriptor("counts", Types.TUPLE([Types.LONG(), Types.LONG()]))


class Numbers(SourceFunction, CheckpointedFunction):
    """Emits paced numbers; its position is in list state."""

    def __init__(self) -> None:
        self.next = 0

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self.position = context.get_operator_state_store().get_list_state(POSITION)
        for position in self.position:
            self.next = position

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        self.position.update([self.next])

    def run(self, ctx: SourceContext) -> None:
        while self.next < NUM_RECORDS and not ctx.is_cancelled:
            with ctx.get_checkpoint_lock():
                ctx.collect(self.next)
                self.next += 1
            if self.next % 1000 == 0:
                time.sleep(PACE_S)


class RulesOnce(SourceFunction, CheckpointedFunction):
    """A rule that a job which goes on from a checkpoint is not told again."""

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self.is_told = context.is_restored()

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        """Store no state: the restored source learns from the checkpoint's existence that its rule was told."""

    def run(self, ctx: SourceContext) -> None:
        if not self.is_told:
            ctx.collect(("add", 7))


class AddRule(BroadcastProcessFunction, CheckpointedFunction):
    """Adds the number of the rule; numbers that came before the rule wait in list state."""

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self.state = context.get_operator_state_store().get_list_state(ListStateDescriptor("waiting", Types.LONG()))
        self.waiting = list(self.state)

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        self.state.update(self.waiting)

    def process_element(self, value: int, ctx: BroadcastProcessFunction.ReadOnlyContext) -> Iterator[int]:
        added = ctx.get_broadcast_state(RULES).get("add")
        if added is None:
            self.waiting.append(value)
        else:
            yield value + added

    def process_broadcast_element(self, value: tuple[str, int], ctx: BroadcastProcessFunction.Context) -> Iterator[int]:
        ctx.get_broadcast_state(RULES).put(*value)
        waiting, self.waiting = self.waiting, []
        yield from (number + value[1] for number in waiting)


class CountInUnion(MapFunction, CheckpointedFunction):
    """Numbers its records; each subtask finds its own count among the counts of all."""

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self.counts = context.get_operator_state_store().get_union_list_state(COUNTS)

    def open(self, runtime_context: RuntimeContext) -> None:
        self.subtask = runtime_context.get_index_of_this_subtask()
        self.count = dict(self.counts).get(self.subtask, 0)

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        self.counts.update([(self.subtask, self.count)])

    def map(self, value: int) -> tuple[int, int, int]:
        self.count += 1
        return value, self.subtask, self.count


def environment(folder: Path) -> StreamExecutionEnvironment:
    configuration = Configuration()
    configuration.set_string("execution.checkpointing.dir", str(folder))
    configuration.set_string("restart-strategy.type", "fixed-delay")
    configuration.set_string("restart-strategy.fixed-delay.attempts", "3")
    configuration.set_string("restart-strategy.fixed-delay.delay", "50 ms")
    env = StreamExecutionEnvironment.get_execution_environment(configuration).set_parallelism(2)
    env.enable_checkpointing(CHECKPOINT_MS)
    return env


def task_managers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children(recursive=True) if child.name() == PROCESS_NAME]


@pytest.mark.parametrize("num_counters", [1, 2])
def test_a_killed_taskmanager_costs_no_operator_state(num_counters: int, tmp_path: Path) -> None:
    """The first result is handed out when a checkpoint in the middle of the data is complete; then one of two
    TaskManagers is killed.

    Without the position numbers would be there twice, without the rule they would wait for ever, without the counts
    there would be two records of a number.
    """
    env = environment(tmp_path)
    rules = env.add_source(RulesOnce()).set_parallelism(1).broadcast(RULES)
    numbers = env.add_source(Numbers()).set_parallelism(1).rebalance()
    added = numbers.connect(rules).process(AddRule(), output_type=Types.LONG())
    triple = Types.TUPLE([Types.LONG(), Types.LONG(), Types.LONG()])

    results = (
        added.rebalance()
        .map(CountInUnion(), output_type=triple)
        .set_parallelism(num_counters)
        .execute_and_collect("rules")
    )
    assert isinstance(results, CloseableIterator)
    with results:
        found = [next(results)]
        killed, *others = task_managers()
        killed.kill()
        killed.wait(PATIENCE_S)
        found += results

    sizes = Counter(subtask for _, subtask, _ in found)
    assert others, "there was one TaskManager only"
    assert sorted(number for number, _, _ in found) == [number + 7 for number in range(NUM_RECORDS)]
    assert sorted((subtask, count) for _, subtask, count in found) == [
        (subtask, count) for subtask in range(num_counters) for count in range(1, sizes[subtask] + 1)
    ]
