"""Connects one operator of a chain to the next ones.

Consumers are of three kinds.  A chained operator that takes records one by one writes its statements into the loop of
the sender.  So does a chained operator behind a ``key_by``: where one subtask feeds one subtask, both sides run in one
task and one loop.  To the user's functions this must look like an exchange, so the key is taken once per record, and
the two sides never share a record that could change.  A chunking output gathers records into chunks.

Hot path: per record the statements that ``write`` generated, with a key one call of the key selector and a test of the
types (bench: programs); per chunk one call of ``collect``.

Side:       task.
Invariants: consumers get a record in the order in which they were added.  Each passes the record through all operators
            behind it before the operator emits the next record.  A chained operator that is the only consumer gets the
            record object itself, as PyFlink's Python operators do.  If there are several consumers, none sees changes
            that another one makes to a record: all but the last get a copy, if the record can change.  Behind a
            ``key_by``, the operator does not see changes that the sender makes to a record after emitting it, nor does
            the sender see the operator's.
Source:     Flink ``ChainingOutput``, ``BroadcastingOutputCollector``, ``CountingOutput``,
            ``WatermarkGaugeExposingOutput``.  Flink serializes each record on its way through a
            ``KeyGroupStreamPartitioner``, whichever subtask it goes to.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from flowlet.chain.chunking_output import ChunkingOutput, KeyExtractor
from flowlet.chain.loop_code import NO_ATTENTION, Blame, LoopCode, LoopEnd, RecordLoop, write_conversion, write_into
from flowlet.chain.record_shape import RecordShape, ShapeWatch, apart
from flowlet.chain.stream_operator import OperatorCounters, Output, StreamOperator
from flowlet.columns.column import UNCHANGING, is_unchanging
from flowlet.errors import KeyTypeError, UserFunctionError
from flowlet.keys.exact_keys import exact_key
from flowlet.mailbox.task_mailbox import Attention, Interrupts
from flowlet.records import MIN_TIMESTAMP, Chunk, CompletionMark, ControlElement, LatencyMarker, Watermark
from flowlet.serde.type_serializer import preview
from flowlet.typed.record_conversion import RecordConversion

_KEYS: Final = frozenset({str, int, bool, bytes})  # keys of these types need no check


class ChainedInput:
    """The input of a chained operator that takes chunks; counts records.  ``counters`` are the operator's."""

    def __init__(self, operator: StreamOperator, counters: OperatorCounters) -> None:
        self.operator = operator
        self.counters = counters
        self.emit_control = operator.process_control

    def collect(self, chunk: Chunk) -> None:
        """Count the records, then process them."""
        self.counters.num_records_in += len(chunk)
        self.operator.process_chunk(chunk)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.operator!r}>"


class ChainedConsumer(ChainedInput):
    """A chained operator that takes records one by one.

    ``loop_ends``: of the operator's output.  ``counters``: of the operator.  ``conversion``: converts records on their
    way to the operator to the sender's declared type.
    """

    def __init__(
        self,
        operator: StreamOperator,
        loop_ends: Sequence[LoopEnd],
        counters: OperatorCounters,
        conversion: RecordConversion | None = None,
    ) -> None:
        super().__init__(operator, counters)
        self._conversion = conversion
        self._behind = loop_ends
        self.loop_ends: Sequence[LoopEnd] = loop_ends  # of loops that lead through this operator

    def write(self, code: LoopCode, record: str, timestamp: str | None) -> None:
        """Generate the statements that process the record in the variable ``record``."""
        if self._conversion is not None:
            record = write_conversion(self._conversion, code, record)
        write_into(self.operator, self._behind, code, record, timestamp, None)

    def write_apart(self, code: LoopCode, record: str, timestamp: str | None) -> None:
        """Generate the statements of ``write`` for a record that other consumers get, too: this consumer gets a copy,
        unless the record cannot change.
        """
        own, unchanging = code.variable("v"), code.bind(UNCHANGING, "UNCHANGING")
        code.line(f"{own} = {record} if type({record}) in {unchanging} else {code.bind(apart, 'apart')}({record})")
        self.write(code, own, timestamp)


class KeyedConsumer(ChainedConsumer, LoopEnd):
    """A chained operator that takes records one by one, each with its key; no record waits here.  Task thread only.

    ``keys``: of the ``key_by`` in between.  See ``ChainedConsumer`` for the other arguments.
    """

    def __init__(
        self,
        operator: StreamOperator,
        loop_ends: Sequence[LoopEnd],
        counters: OperatorCounters,
        conversion: RecordConversion | None,
        keys: KeyExtractor,
    ) -> None:
        super().__init__(operator, loop_ends, counters, conversion)
        self.loop_ends = [self, *loop_ends]
        self.keys = keys
        self.shape: RecordShape | None = None
        self.text_key: RecordShape | None = None  # the shape itself
        self._watch = ShapeWatch()

    def enter_loop(self) -> None:
        """Choose the shape that fits the last records, at the start of a run of a loop."""
        self.shape = self.text_key = self._watch.chosen(self.shape)

    def write(self, code: LoopCode, record: str, timestamp: str | None) -> None:
        """Generate the statements that process the record in the variable ``record``."""
        conversion = self._conversion
        is_covered = (
            conversion is not None
            and self.shape is not None
            and conversion.covers(self.shape.kind, self.shape.field_types)
        )
        if conversion is not None and not is_covered:
            record = write_conversion(conversion, code, record)
        key = self.keys.write(code, record)
        # A second variable only if the record is shared: with one more reference, operators behind would copy any
        # record.
        owned = code.variable("v") if code.is_shared(record) else record
        checked = f"{key} = {code.bind(self.checked, 'checked')}({key}, {record})"
        code.line(f"if type({key}) not in {code.bind(_KEYS, 'KEYS')}: {checked}")
        isolated = f"{owned} = {code.bind(self.isolated, 'isolated')}({record})"
        if conversion is not None and is_covered:
            isolated = f"{owned} = {code.bind(self._converted, 'converted')}({record})"
        shape = self.shape
        if shape is None:
            code.line(isolated)
        else:
            with code.block(f"if {shape.type_test(code, record)}:"):
                fields, tests = shape.write_fields(code, record)
                flat = None if shape.field_types is not None else shape.flat_test(code, record)
                tests += [] if flat is None else [flat]
                if conversion is not None and is_covered:
                    tests += conversion.tests(fields, record)
                with code.block(f"if {' and '.join(tests) or 'True'}:"):
                    isolated_one = shape.owned(code, record, fields)
                    code.line("pass" if isolated_one == owned else f"{owned} = {isolated_one}")
                with code.block("else:"):
                    code.line(isolated)
            with code.block("else:"):
                code.line(isolated)
        # If the key is a column, the operator takes it by itself: users' functions and aggregations need two forms.
        write_into(self.operator, self._behind, code, owned, timestamp, None if self.keys.is_column else key)

    def _converted(self, record: Any) -> Any:
        """A record of the declared type, which is new if it can change."""
        assert self._conversion is not None, "only the text of a loop that converts calls it"
        return self.isolated(self._conversion.convert(record))

    def checked(self, key: Any, record: Any) -> Any:
        """The key, copied if it can change.

        Raises UserFunctionError, which names the record, if the value cannot be a key.
        """
        try:
            exact_key(key)
        except KeyTypeError as error:
            raise UserFunctionError(self.keys.name, self.keys.subtask, preview(record)) from error
        return key if is_unchanging(key) else apart(key)

    def isolated(self, record: Any) -> Any:
        """The record if it cannot change, else an equal new one."""
        self._watch.note(record)
        return record if type(record) in UNCHANGING else apart(record)


Consumer = ChainedConsumer | ChunkingOutput


class OperatorOutput:
    """The output of an operator: counts records, distributes them to consumers, and remembers the watermark.

    Threading: task thread; ``current_watermark`` (milliseconds) anywhere, one watermark stale.

    Args:
        name: the operator's, shown in the text of loops.
        main: consumers of the main output.
        sides: consumers of each side output that has any.
        counters: the operator's; a record counts once, however many consumers get it.
        attention: the task's.
    """

    def __init__(
        self,
        name: str,
        main: Sequence[Consumer],
        sides: Mapping[str, Sequence[Consumer]],
        counters: OperatorCounters,
        attention: Attention = NO_ATTENTION,
    ) -> None:
        self._attention = attention
        self._main = _Way(name, main, counters, attention)
        self._sides = {
            tag_id: _Way(f"{name}, side output {tag_id}", consumers, counters, attention)
            for tag_id, consumers in sides.items()
        }
        self._all: list[Consumer] = [*main, *(consumer for consumers in sides.values() for consumer in consumers)]
        self.loop_ends: list[LoopEnd] = [end for way in (self._main, *self._sides.values()) for end in way.loop_ends]
        self.text_ids = set(sides)
        """The ids of the side outputs that are read; emptied when the operator has warned of one that was a text
        (``TextsForTags``).
        """
        # Those of the main output; see ``_Way``.
        self.write = self._main.write
        self.collect: Callable[[Chunk], object] = self._main.collect
        self.collect_some = self._main.collect
        self.collect_each = self._main.emit
        self.takes_whole = self._main.takes_whole
        self.is_gathered = self._main.is_gathered
        self.current_watermark = MIN_TIMESTAMP
        self.on_mark: Callable[[CompletionMark], None] | None = None  # called after each mark; set where a chain ends

    def __repr__(self) -> str:
        return f"<OperatorOutput at {self.current_watermark}: {self._all!r}>"

    # ---------------------------------------------------------------- written into loops

    def write_side(self, code: LoopCode, tag_id: str, record: str, timestamp: str | None) -> None:
        """Generate the statement that emits a record to the side output whose id is in the variable ``tag_id``."""
        code.line(f"{code.bind(self.emit_side, 'emit_side')}({tag_id}, {record}, {timestamp})")

    def write_limit(self, code: LoopCode) -> None:
        """Generate the statements for the end of an inner loop, which may emit any number of records."""
        for end in self._main.loop_ends:
            end.write_limit(code)

    def write_each(
        self,
        code: LoopCode,
        result: str,
        piece: str,
        rest: tuple[str, str],
        blame: Blame,
        write: Callable[[], None],
        end: Callable[[], None],
    ) -> None:
        """Generate the inner loop over the items that a function returned, each of which may take any time.

        Once results are due, each leaves the task before the next one is requested.

        Args:
            code: the loop.
            result: name of the variable for an item.
            piece: name of the variable with the first iterable.
            rest: two expressions: whether the function makes items one by one, and the iterable behind a piece.
            blame: for an error of the iterable.
            write: generates the statements that process an item.
            end: generates the statements behind a piece; they leave the loop, or go on with the next piece.
        """
        attention, drain = code.bind(self._attention, "attention"), code.bind(code.drain, "drain")
        is_lazy, next_piece = rest
        late = code.variable("late")
        code.at_start(f"{late} = None")
        with code.block("while True:"):
            with code.block(f"for {result} in {piece}:", blame):
                with code.block(f"if {attention}:"):
                    code.line(f"{attention}.attend({drain})")
                    # This item took long, and so may the next one: process this item in a piece of its own, behind
                    # which results leave.  A second test behind each item would do as well, but costs 2 to 4 ns.
                    with code.block(f"if {piece} is not {late} and {is_lazy}:"):
                        code.line(f"{piece} = {late} = ({result},)")
                        code.line("break")
                write()
            with code.block("else:"):
                with code.block(f"if {piece} is {late}:"):
                    code.line(f"{attention}.attend({drain})")
                    code.line(f"{late} = None")
                with code.block("else:"):
                    end()
                code.line(f"{piece} = {next_piece}")
        # From here on these variables refer to no emitted record.
        code.line(f"{piece} = {result} = None")

    def write_items(self, code: LoopCode, result: str, results: str, blame: Blame, write: Callable[[], None]) -> None:
        """Generate the inner loop over all items of the variable ``results``, which is None afterwards; see
        ``write_each``.
        """
        piece = code.variable("piece")
        code.line(f"{piece} = {results}")
        self.write_each(
            code, result, piece, (f"iter({results}) is {results}", results), blame, write, lambda: code.line("break")
        )
        code.line(f"{results} = None")

    def emit_side(self, tag_id: str, record: Any, timestamp: int | None) -> None:
        """Emit one record to a side output; a record without a consumer is dropped."""
        way = self._sides.get(tag_id)
        if way is not None:
            way.emit((record,), None if timestamp is None else (timestamp,), 1)

    # ---------------------------------------------------------------- called by operators

    def collect_side(self, tag_id: str, chunk: Chunk) -> None:
        """Emit records to a side output; records without a consumer are dropped."""
        way = self._sides.get(tag_id)
        if way is not None:
            way.collect(chunk)

    def drain(self) -> None:
        """Pass all waiting records to their consumers."""
        for end in self.loop_ends:
            end.drain()

    def emit_control(self, element: ControlElement) -> None:
        """Pass an element to every consumer of every output; a latency marker to one of them, chosen at random."""
        if isinstance(element, Watermark):  # first: a generator may emit one behind each record
            self.current_watermark = element.timestamp
            for consumer in self._all:
                consumer.emit_control(element)
            return
        if isinstance(element, LatencyMarker):
            if self._all:
                random.choice(self._all).emit_control(element)  # noqa: S311 - spreads load, protects nothing
            return
        for consumer in self._all:
            consumer.emit_control(element)
        if isinstance(element, CompletionMark) and self.on_mark is not None:
            self.on_mark(element)


class _Way:
    """The main output, or one side output."""

    def __init__(
        self, name: str, consumers: Sequence[Consumer], counters: OperatorCounters, attention: Attention = NO_ATTENTION
    ) -> None:
        self._consumers = tuple(consumers)
        self._counters = counters
        self.loop_ends: list[LoopEnd] = []
        for consumer in consumers:
            self.loop_ends += [consumer] if isinstance(consumer, ChunkingOutput) else consumer.loop_ends
        self._loop = RecordLoop(name, self._write_loop, self.loop_ends, attention)
        # Emits records of a lazy iterable: the next record, or its timestamp, is requested when the last record is
        # fully processed.
        self.emit = self._loop.run
        # Whether all consumers wait for chunks: no function is called for single records.
        self.is_gathered = all(isinstance(consumer, ChunkingOutput) for consumer in consumers)

    def _write_loop(self, code: LoopCode, record: str, timestamp: str | None, _key: str | None) -> None:
        self.write(code, record, timestamp, count="num_records")

    def write(self, code: LoopCode, record: str, timestamp: str | None, *, count: str | None = None) -> None:
        """Generate the statements that emit the record in the variable ``record``.

        Args:
            code: the loop.
            record: name of a variable.
            timestamp: the variable with its timestamp; None: records of this loop have none.
            count: an expression that tells at the end of the loop how often the statements ran; None: unknown.
        """
        if count is None:
            count = self._write_count(code)
        code.at_end(f"{code.bind(self._counters, 'counters')}.num_records_out += {count}")
        for consumer in self._consumers:
            if not isinstance(consumer, ChunkingOutput):
                code.at_end(f"{code.bind(consumer.counters, 'counters')}.num_records_in += {count}")
                code.counts[id(consumer.operator)] = count
            is_last = consumer is self._consumers[-1]
            with code.sharing(record, is_shared=not is_last):
                if is_last or isinstance(consumer, ChunkingOutput | KeyedConsumer):
                    consumer.write(code, record, timestamp)
                else:
                    consumer.write_apart(code, record, timestamp)

    def _write_count(self, code: LoopCode) -> str:
        count = code.variable("n")
        if len(self._consumers) == 1 and isinstance(self._consumers[0], ChunkingOutput):
            # A chunking output counts by itself, once per chunk, which saves an addition per record.
            output = code.bind(self._consumers[0], "output")
            code.at_start(f"{count} = {output}.num_emitted")
            code.at_end(f"{output}.drain()")
            return f"{output}.num_emitted - {count}"
        code.at_start(f"{count} = 0")
        code.line(f"{count} += 1")
        return count

    def takes_whole(self, chunk: Chunk) -> bool:
        """Whether no consumer needs to see single records."""
        return all(
            isinstance(consumer, ChunkingOutput) and consumer.try_whole(chunk) is not None
            for consumer in self._consumers
        )

    def collect(self, chunk: Chunk, interrupts: Interrupts | None = None) -> int:
        """Emit records until ``interrupts`` are not empty (None: all); returns how many, perhaps none.

        Takes over the chunk if all records were emitted.  Only the head of a chain gives ``interrupts``.
        """
        num_records = len(chunk)
        if not num_records:
            return 0
        wholes = []
        for consumer in self._consumers:
            whole = consumer.try_whole(chunk) if isinstance(consumer, ChunkingOutput) else None
            if whole is None or (len(self._consumers) > 1 and consumer.calls_users):  # type: ignore[union-attr]  # None for the others
                return self._loop.run(chunk.records(), chunk.timestamps, num_records, None, interrupts)
            wholes.append(whole)
        self._counters.num_records_out += num_records
        for consumer, whole in zip(self._consumers, wholes, strict=True):
            assert isinstance(consumer, ChunkingOutput), "only chunking outputs take whole chunks"
            consumer.collect(whole if consumer is self._consumers[-1] else whole.copy())
        return num_records


def input_of(name: str, consumer: Consumer, interrupts: Interrupts, attention: Attention) -> Callable[[Chunk], int]:
    """The function that gives records to one consumer of an operator until a mail waits, and returns how many.

    The records are not counted: the operator emitted them in the run before.
    """
    return partial(_Way(name, (consumer,), OperatorCounters(), attention).collect, interrupts=interrupts)


class _SideTarget:
    """One side output of an ``Output`` that distributes by itself."""

    def __init__(self, output: Output, tag_id: str) -> None:
        self._output = output
        self._tag_id = tag_id

    def collect(self, chunk: Chunk) -> None:
        self._output.collect_side(self._tag_id, chunk)

    def emit_control(self, _element: ControlElement) -> None:
        """Do nothing: the main output passes the element on."""


class StandaloneOutput(OperatorOutput):
    """The output of an operator outside of a chain: sends all elements, of side outputs, too, to an ``Output`` that
    takes chunks.
    """

    def __init__(self, name: str, output: Output, counters: OperatorCounters) -> None:
        super().__init__(name, [ChunkingOutput(output)], {}, counters)
        self._output = output

    def emit_side(self, tag_id: str, record: Any, timestamp: int | None) -> None:
        """Emit one record to a side output, whether it has a consumer or not."""
        self._way_of(tag_id).emit((record,), None if timestamp is None else (timestamp,), 1)

    def collect_side(self, tag_id: str, chunk: Chunk) -> None:
        """Emit records to a side output, whether it has a consumer or not."""
        self._way_of(tag_id).collect(chunk)

    def _way_of(self, tag_id: str) -> _Way:
        way = self._sides.get(tag_id)
        if way is None:
            counters = OperatorCounters()  # not reported: the records of side outputs are not counted
            way = self._sides[tag_id] = _Way(tag_id, [ChunkingOutput(_SideTarget(self._output, tag_id))], counters)
        return way
