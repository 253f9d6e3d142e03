"""A value that cannot be written into a snapshot is refused with its operator's name: two operators may have states of
one name.
"""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flowlet.common import Configuration, Types
from flowlet.common.job_client import JobClient
from flowlet.datastream import (
    BroadcastProcessFunction,
    DataStream,
    KeyedProcessFunction,
    RuntimeContext,
    SourceFunction,
)
from flowlet.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from flowlet.errors import FlowletError, JobExecutionError
from flowlet.testing.mini_cluster import MiniCluster
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

PAIR = Types.TUPLE([Types.LONG(), Types.STRING()])
RULES = MapStateDescriptor("state", Types.STRING(), PAIR)


class One(SourceFunction):
    """One record; then it waits for the end."""

    is_cancelled = threading.Event()

    def run(self, ctx: Any) -> None:
        ctx.collect(1)
        self.is_cancelled.wait(PATIENCE_S)

    def cancel(self) -> None:
        self.is_cancelled.set()


class Keeps(KeyedProcessFunction):
    """Updates one state with a value that cannot be written."""

    is_kept = threading.Event()

    def __init__(self, keep: Callable[[RuntimeContext], None]) -> None:
        self.keep = keep

    def open(self, runtime_context: RuntimeContext) -> None:
        self.ctx = runtime_context

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        self.keep(self.ctx)
        self.is_kept.set()
        yield value


class KeepsRules(BroadcastProcessFunction):
    def process_element(self, value: Any, ctx: BroadcastProcessFunction.ReadOnlyContext) -> Iterator[Any]:
        yield value

    def process_broadcast_element(self, value: Any, ctx: BroadcastProcessFunction.Context) -> Iterator[Any]:
        ctx.get_broadcast_state(RULES).put("k", 5)
        Keeps.is_kept.set()
        yield value


def keyed(keep: Callable[[RuntimeContext], None]) -> Callable[[DataStream], DataStream]:
    return lambda stream: stream.key_by(lambda value: value).process(Keeps(keep))


REFUSED: dict[str, tuple[Callable[[DataStream], DataStream], str]] = {
    "a value": (
        keyed(lambda ctx: ctx.get_state(ValueStateDescriptor("state", PAIR)).update(("text", "b"))),
        r"state 'state' is declared as TupleTypeInfo\(Long, String\) and cannot hold a value \('text', 'b'\)",
    ),
    "an element": (
        keyed(lambda ctx: ctx.get_list_state(ListStateDescriptor("state", PAIR)).add((1, 2, 3))),
        r"state 'state' is declared as .* and cannot hold a value \(1, 2, 3\)",
    ),
    "a lock": (
        keyed(
            lambda ctx: ctx.get_state(ValueStateDescriptor("state", Types.PICKLED_BYTE_ARRAY())).update(
                threading.Lock()
            )
        ),
        "state 'state' holds a value that cannot be pickled",
    ),
}


def waiting_job(cluster: MiniCluster, options: dict[str, str], step: Callable[[DataStream], DataStream]) -> JobClient:
    """Return a job whose operator has kept a value that cannot be written."""
    One.is_cancelled.clear()
    Keeps.is_kept.clear()
    env = cluster.environment()
    env.configure(Configuration.from_dict(options))
    step(env.add_source(One())).name("the keeper").print()
    job = env.execute_async("keeps")
    assert Keeps.is_kept.wait(PATIENCE_S)
    return job


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize("what", REFUSED)
def test_what_a_savepoint_cannot_hold_is_refused_with_its_operator(what: str, backend: str, tmp_path: Path) -> None:
    if backend == "rocksdb":
        pytest.importorskip("rocksdict")
    step, said = REFUSED[what]
    options = {"state.backend.type": backend, "execution.checkpointing.savepoint-dir": str(tmp_path)}
    with MiniCluster(1) as cluster:
        job = waiting_job(cluster, options, step)

        with pytest.raises(FlowletError, match=f"operator 'the keeper'.*: {said}"):
            job.trigger_savepoint().result()

        job.cancel().result()


def test_rules_that_a_savepoint_cannot_hold_are_refused_with_their_operator(tmp_path: Path) -> None:
    """Broadcast state is looked at by the task itself, which fails with the words."""
    options = {"restart-strategy.type": "none", "execution.checkpointing.savepoint-dir": str(tmp_path)}
    with MiniCluster(1) as cluster:
        job = waiting_job(cluster, options, lambda it: it.connect(it.broadcast(RULES)).process(KeepsRules()))

        savepoint = job.trigger_savepoint()
        with pytest.raises(
            JobExecutionError,
            match=r"operator 'the keeper'.*: state 'state' is declared as .* and cannot hold a value 5",
        ):
            job.get_job_execution_result().result()
        with pytest.raises(FlowletError):
            savepoint.result()
