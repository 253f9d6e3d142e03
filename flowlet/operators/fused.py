"""A run of ``map``, ``filter`` and ``flat_map`` operators of a chain that takes chunks through generated loops.

Hot path: per chunk and stage one call, a look at the functions and the counters; per record what the generated loop does.

Side:       task.
Invariants: outside, nothing tells a fused run from its operators: records, timestamps, counters after each chunk, watermarks, errors.
            A chunk that cannot be fused exactly (records to be copied, a debugger, functions that were replaced meanwhile) goes through the
            operators.
Source:     none of Flink's: its JIT compiler does this.
Rules:      inside a stage a record goes through all functions before the next one does, as in Flink; without fusing, and between stages, a
            chunk does.  When a function fails, the operators before it in its stage have not counted the chunk.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from flowlet.errors import UserFunctionError
from flowlet.fusing.generated import failed_call
from flowlet.fusing.inlined_map import is_same_function
from flowlet.fusing.projection import Projection, projection_of
from flowlet.fusing.stages import Stage, Step, StepKind, flat_stage, has_inlined, list_stage, stages_of
from flowlet.fusing.switch import is_traced
from flowlet.fusing.unchanging_records import chunk_is_unchanging
from flowlet.operators import transform
from flowlet.operators.base import Output, StreamOperator
from flowlet.operators.outputs import ChainingOutput
from flowlet.operators.transform import FilterOperator, FlatMapOperator, MapOperator, TransformOperator
from flowlet.operators.user_function import preview
from flowlet.operators.word_splitting import WordSplitter
from flowlet.records import Chunk


@dataclass(frozen=True, slots=True)
class FusedLink:
    """An operator of a run, and the way into it from the one before, which copies where that is asked for; None: from the task's input."""

    operator: TransformOperator
    way_in: ChainingOutput | None


class FusedRun:
    """Takes chunks in the place of the first operator of a run; the other ones are reached through it.

    Threading: task thread.
    Life cycle: the functions are looked at when the first chunk comes, after ``open``.

    Args:
        links: the operators, in order.
    """

    def __init__(self, links: Sequence[FusedLink]) -> None:
        self._links = links
        self._calls: list[Callable[..., Any]] | None = None  # what was built in; None: nothing yet
        self._first: _Stage | None = None  # None: there is nothing to gain, or not any more

    def __repr__(self) -> str:
        return f"<FusedRun {' -> '.join(link.operator.name for link in self._links)}>"

    def process_chunk(self, chunk: Chunk) -> None:
        """Process what the first operator has counted."""
        stage = self._ready()
        if stage is None:
            self._links[0].operator.process_chunk(chunk)
        else:
            stage.enter(chunk)

    def collect(self, chunk: Chunk) -> None:
        """Count, copy if need be, and process."""
        stage = self._ready()
        if stage is not None:
            stage.take(chunk)
            return
        way_in = self._links[0].way_in
        assert way_in is not None, "the task's input feeds process_chunk"
        way_in.collect(chunk)

    def _ready(self) -> "_Stage | None":
        """Where to begin; None if the operators are to do it."""
        calls = [link.operator.function.call for link in self._links]
        if self._calls is None:
            self._calls, self._first = calls, self._fused(calls)
        elif not all(map(is_same_function, calls, self._calls)):
            self._first = None
        return None if is_traced() else self._first

    def _fused(self, calls: Sequence[Callable[..., Any]]) -> "_Stage | None":
        steps = [
            Step(link.operator.kind, call, copies=link.way_in is not None and link.way_in.copies)
            for link, call in zip(self._links, calls, strict=True)
        ]
        if not has_inlined(steps) and not _splits_words(steps[-1]):
            return None
        following: _Stage | None = None
        for stage in reversed(stages_of(steps)):
            following = _Stage(self._links, steps, stage, following, self._links[-1].operator.output)
        return following


class _Stage:
    """One loop of a run."""

    def __init__(self, links: Sequence[FusedLink], steps: Sequence[Step], stage: Stage, following: "_Stage | None", output: Output) -> None:
        self._operators = [link.operator for link in links]
        self._steps = steps
        self._stage = stage
        self._following = following
        self._output = output
        self._way_in = links[stage.start].way_in
        self._loops: dict[bool, Callable[..., Any]] = {}  # by whether there are timestamps
        only = steps[stage.start] if stage.stop - stage.start == 1 else None
        # What is behind must not make a list of them again.
        stays_columns = following is None or following._projection is not None
        self._splitter = WordSplitter.of(only.function) if only is not None and stays_columns and _splits_words(only) else None
        self._projection: Projection | None = projection_of(only.function) if only is not None and only.kind is StepKind.MAP else None

    def enter(self, chunk: Chunk) -> None:
        """Process records that the first operator has counted."""
        if self._stage.must_not_change and not chunk_is_unchanging(chunk):
            self._operators[self._stage.start].process_chunk(chunk)
        elif not self._try_project(chunk):
            self._run(chunk.values, chunk.timestamps)

    def take(self, chunk: Chunk) -> None:
        """Process records of an operator before, or of the stage before."""
        assert self._way_in is not None, "there is a way from the operator before"
        if self._stage.must_not_change and not chunk_is_unchanging(chunk):
            self._way_in.collect(chunk)
            return
        self._operators[self._stage.start].ctx.counters.num_records_in += len(chunk)
        if self._try_project(chunk):
            return
        # The list of a chunk that others see, too, is not passed on.
        self._run(chunk.values, chunk.timestamps.copy() if self._way_in.copies and chunk.timestamps is not None else chunk.timestamps)

    def _run(self, values: list[Any], timestamps: list[int] | None) -> None:
        if self._stage.is_flat:
            self._run_flat(values, timestamps)
            return
        loop = self._loop(has_timestamps=timestamps is not None)
        try:
            if self._stage.filter is None:
                results, stamps = loop(values), timestamps
            elif timestamps is None:
                results, stamps = loop(values), None
            else:
                stamps = []
                results = loop(values, timestamps, stamps.append)
        except Exception as error:
            raise self._failure(error) from error
        self._count(len(values), len(results))
        if results:
            self._pass(Chunk(results, stamps))

    def _run_flat(self, values: list[Any], timestamps: list[int] | None) -> None:
        words = None if self._splitter is None else self._splitter.try_split(values, timestamps)
        if words is not None:
            self._count(len(values), 0)
            last = self._operators[self._stage.stop - 1].ctx.counters
            for chunk in words:
                if self._following is not None:
                    last.num_records_out += len(chunk)
                self._pass(chunk)
            return
        loop = self._loop(has_timestamps=timestamps is not None)
        limit = transform.FLAT_MAP_CHUNK_RECORDS
        batches = loop(limit, values) if timestamps is None else loop(limit, values, timestamps)
        self._count(len(values), 0)
        last = self._operators[self._stage.stop - 1].ctx.counters
        while True:
            try:
                batch = next(batches, None)
            except transform.NotIterableError as error:
                raise self._failure(error) from transform.advice(error.result)
            except Exception as error:
                raise self._failure(error) from error
            if batch is None:
                return
            results, stamps = (batch, None) if timestamps is None else batch
            if self._following is not None:
                last.num_records_out += len(results)
            self._pass(Chunk(results, stamps))
            del batch, results  # the records go before the next ones are made, while they are in the cache

    def _try_project(self, chunk: Chunk) -> bool:
        """Put together the columns of a chunk, if it has any, and the stage does nothing else."""
        columns = None if self._projection is None or chunk.columns is None else self._projection.try_apply(chunk.columns)
        if columns is None:
            return False
        self._count(len(chunk), len(chunk))
        self._pass(Chunk.of_columns(columns, chunk.timestamps if chunk.timestamp_array is None else chunk.timestamp_array))
        return True

    def _pass(self, chunk: Chunk) -> None:
        if self._following is None:
            self._output.collect(chunk)
        else:
            self._following.take(chunk)

    def _count(self, num_in: int, num_out: int) -> None:
        """``num_in`` for each operator up to the filter, ``num_out`` from there on; who emits to the outside is counted there."""
        stage = self._stage
        num_records = num_in
        for index in range(stage.start, stage.stop):
            counters = self._operators[index].ctx.counters
            if index > stage.start:
                counters.num_records_in += num_records
            if index == stage.filter or (stage.is_flat and index == stage.stop - 1):
                num_records = num_out
            if index < len(self._operators) - 1:
                counters.num_records_out += num_records

    def _loop(self, *, has_timestamps: bool) -> Callable[..., Any]:
        loop = self._loops.get(has_timestamps)
        if loop is None:
            title = " -> ".join(operator.name for operator in self._operators[self._stage.start : self._stage.stop])
            loop = self._loops[has_timestamps] = self._generate(title, has_timestamps=has_timestamps)
        return loop

    def _generate(self, title: str, *, has_timestamps: bool) -> Callable[..., Any]:
        if self._stage.is_flat:
            return flat_stage(title, self._steps, self._stage, iterate=transform.iterate, has_timestamps=has_timestamps)
        return list_stage(title, self._steps, self._stage, has_timestamps=has_timestamps)

    def _failure(self, error: Exception) -> UserFunctionError:
        failed = failed_call(error)
        operator = self._operators[self._stage.stop - 1 if failed is None else failed.label]
        return UserFunctionError(operator.name, operator.ctx.subtask, None if failed is None else preview(failed.arguments[0]))


class FusedOutput:
    """The way into the first operator of a run, for the operator before it.

    Args:
        run: takes the chunks.
        way_in: takes everything else.
    """

    __slots__ = ("collect", "copies", "emit_latency_marker", "emit_watermark", "emit_watermark_status")

    def __init__(self, run: FusedRun, way_in: ChainingOutput) -> None:
        self.collect = run.collect
        self.copies = way_in.copies
        self.emit_watermark = way_in.emit_watermark
        self.emit_watermark_status = way_in.emit_watermark_status
        self.emit_latency_marker = way_in.emit_latency_marker


def can_be_fused(operator: StreamOperator) -> TypeGuard[TransformOperator]:
    """Whether a run may contain the operator; a subclass does what it likes."""
    return type(operator) in (MapOperator, FilterOperator, FlatMapOperator)


def _splits_words(step: Step) -> bool:
    return step.kind is StepKind.FLAT_MAP and WordSplitter.of(step.function) is not None
