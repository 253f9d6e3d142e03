"""Runs a program as a user would: built with the API, submitted to a cluster in this process, collected.

Side:       shared.  Tasks have threads, mailboxes, record writers and serializers of their own; what differs from a
            real cluster is that all of it lies in one process, so that functions can write into one log.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pytest

from flowlet.chain import record_shape
from flowlet.common import Time
from flowlet.common.watermark_strategy import WatermarkStrategy
from flowlet.datastream import AsyncDataStream, CloseableIterator, StreamExecutionEnvironment
from flowlet.datastream.data_stream import DataStream
from flowlet.errors import FlowletError
from flowlet.operators import source_operator
from flowlet.testing.mini_cluster import MiniCluster
from tests.differential import worlds
from tests.differential.functions import function as function_named
from tests.differential.programs import Call, Chaining, Kind, Program, Read, Step, copied

_OPERATOR = re.compile(r"operator '(?:Source: )?step-(\d+)'")
_RECORD = re.compile(r"^while processing the record (.*)$", re.MULTILINE)
_BOOM = re.compile(r"Boom: (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Actual:
    """The doings of a job: calls, results and error.

    ``error``: the step that it blames, the preview of the record, and what was raised; None where the text names none.
    """

    log: list[tuple[int, str]]
    collected: list[Any]
    error: tuple[int | None, str | None, str | None] | None = None
    error_text: str = ""


def run(program: Program, cluster: MiniCluster) -> Actual:
    number = worlds.new_world()
    environment = cluster.environment()
    environment.set_parallelism(1)
    # 0: generators are not asked by the clock, which nobody could predict.
    environment.get_config().set_auto_watermark_interval(0)
    try:
        with _eager_loops(program.seed % _NUM_WAYS):
            return _ran(program, environment, number)
    finally:
        environment.close()


def _ran(program: Program, environment: StreamExecutionEnvironment, number: int) -> Actual:
    error: FlowletError | None = None
    collected: list[Any] = []
    try:
        results = Builder(environment, number).build(program).execute_and_collect(f"program {program.seed}")
        assert isinstance(results, CloseableIterator)
        with results:
            collected.extend(results)
    except FlowletError as raised:
        error = raised
    finally:
        log = worlds.forget_world(number).log
    return Actual(log, collected) if error is None else Actual(log, collected, _described(str(error)), str(error))


_NUM_WAYS: Final = 4


@contextmanager
def _eager_loops(num_records: int) -> Iterator[None]:
    """Let loops find the shape of records in chunks of so many records; 0: as in every job, which takes many
    records.
    """
    with pytest.MonkeyPatch.context() as patch:
        if num_records:
            patch.setattr(record_shape, "MIN_OTHERS", 1)
            patch.setattr(source_operator, "MAX_CHUNK_RECORDS", num_records)
        yield


def _described(text: str) -> tuple[int | None, str | None, str | None]:
    step, record, boom = _OPERATOR.search(text), _RECORD.search(text), _BOOM.search(text)
    return (
        None if step is None else int(step[1]),
        None if record is None else record[1],
        None if boom is None else boom[1],
    )


class Builder:
    """Makes the streams of a program.

    Args:
        environment: of the job.
        world_number: where its functions write.
    """

    def __init__(self, environment: StreamExecutionEnvironment, world_number: int) -> None:
        self._environment = environment
        self._world_number = world_number
        self._streams: dict[int, DataStream] = {}

    def build(self, program: Program) -> DataStream:
        for step in program.steps:
            stream = self._stream(step)
            if step.chaining is not Chaining.ALWAYS:
                stream = getattr(stream, step.chaining.value)()
            self._streams[step.id] = stream.name(step.name)
        return self._read(program.collected)

    def _read(self, read: Read) -> DataStream:
        stream = self._streams[read.step]
        return stream if read.tag is None else stream.get_side_output(worlds.TAGS[read.tag])

    def _made(self, step: Step, call: Call) -> Any:
        return function_named(call.name)(self._world_number, step.id, *call.arguments)

    def _stream(self, step: Step) -> DataStream:
        function: Any = None if step.call is None or step.kind is Kind.AGGREGATE else self._made(step, step.call)
        if step.kind is Kind.COLLECTION:
            return self._environment.from_collection(copied(step.records))
        if step.kind is Kind.SOURCE:
            return self._environment.add_source(function)
        stream = self._connected(step) if step.kind.is_connected else self._input(step)
        made: DataStream
        match step.kind:
            case Kind.ASYNC:
                made = AsyncDataStream.ordered_wait(stream, function, Time.seconds(60), capacity=step.capacity)
            case Kind.EVENT_TIME:
                strategy = WatermarkStrategy.no_watermarks()
                if step.watermarks is not None:
                    strategy = WatermarkStrategy.for_generator(self._made(step, step.watermarks))
                made = stream.assign_timestamps_and_watermarks(strategy.with_timestamp_assigner(function))
            case Kind.AGGREGATE:
                assert step.call is not None, "it says which one"
                made = getattr(stream, step.call.name)(*step.call.arguments)
            case _:
                made = getattr(stream, step.method)(function)
        return made

    def _input(self, step: Step) -> Any:
        first, *rest = (self._read(read) for read in step.reads)
        stream = first.union(*rest) if rest else first
        if step.is_rebalanced:
            stream = stream.rebalance()
        return stream if step.key is None else stream.key_by(function_named(step.key))

    def _connected(self, step: Step) -> Any:
        first, second = (self._read(read) for read in step.reads)
        connected = first.connect(second)
        if step.key is None:
            return connected
        selector = function_named(step.key)
        return connected.key_by(selector, selector)
