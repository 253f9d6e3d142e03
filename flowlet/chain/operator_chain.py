"""The operators of one task, connected to each other.

``MarkValve``: joins the completion marks of several channels.

Side:       task.
Invariants: a mark leaves once it, or a later one, has arrived on every channel that has not ended; numbers that leave
            rise.  An operator's consumers come after it in the chain.  Every opened operator is closed, whatever the
            others raise.
Source:     ``MarkValve``: Flink ``StatusWatermarkValve`` and ``CheckpointBarrierTracker``, whose idle channels and
            aborted checkpoints marks do not have. Flink ``OperatorChain``, ``StreamOperatorWrapper``. Operators are
            made and opened last to first, finished and closed first to last. Chained operators pass on the record
            object itself (``operator_output``), as PyFlink's Python operators do.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from flowlet.chain.chunking_output import ChunkingOutput, KeyExtractor
from flowlet.chain.operator_output import (
    ChainedConsumer,
    ChainedInput,
    Consumer,
    KeyedConsumer,
    OperatorOutput,
    input_of,
)
from flowlet.chain.stream_operator import EdgeOutput, Input, OperatorContext, OperatorCounters, StreamOperator
from flowlet.errors import UserFunctionError
from flowlet.records import MIN_TIMESTAMP, Chunk, CompletionMark, ControlElement, Watermark
from flowlet.serde.type_serializer import preview
from flowlet.typed.record_conversion import RecordConversion
from netstack.late import dataclass

_ENDED: Final = 2**63 - 1


class MarkValve:
    """The last mark of each of ``num_channels`` channels.  Threading: one thread."""

    __slots__ = ("_last", "_num_behind", "_numbers")

    def __init__(self, num_channels: int) -> None:
        self._numbers = [0] * num_channels
        self._last = 0  # the number that left last, which is the smallest of ``_numbers``
        self._num_behind = num_channels  # channels without a later mark than ``_last``

    def __repr__(self) -> str:
        return f"<MarkValve after mark {self._last}, {self._num_behind} of {len(self._numbers)} channels are behind>"

    def receive(self, channel: int, mark: CompletionMark) -> CompletionMark | None:
        """Note a mark that arrived on a channel; returns the mark that may leave now, or None."""
        return self._advance(channel, mark.number)

    def end(self, channel: int) -> CompletionMark | None:
        """Note that a channel has ended, and holds back no mark; returns the mark that may leave now, or None; None
        also if all channels have ended.
        """
        return self._advance(channel, _ENDED)

    def _advance(self, channel: int, number: int) -> CompletionMark | None:
        before = self._numbers[channel]
        if number <= before:
            return None
        self._numbers[channel] = number
        if before > self._last:
            return None
        self._num_behind -= 1
        if self._num_behind:
            return None
        self._last = min(self._numbers)
        self._num_behind = self._numbers.count(self._last)
        return None if self._last == _ENDED else CompletionMark(self._last)


@dataclass(frozen=True, slots=True)
class ChainedOperator:
    """An operator and the source of its input.

    ``parent``: the index in the chain of the operator that it reads; -1 for the head.  ``tag``: the side output of the
    parent that it reads; None: the main output.  ``key_selector``: that of a ``key_by`` in between: a callable, or an
    object with ``get_key(value)``; None: no ``key_by``.  ``takes_unconverted``: the operator gets records as the
    parent's function returned them, not converted to the declared type.
    """

    operator: StreamOperator
    parent: int = -1
    tag: str | None = None
    key_selector: Any = None
    takes_unconverted: bool = False


# (index of an operator, its side output or None for the main one) -> the task's outputs that it feeds.
EdgeOutputs = Mapping[tuple[int, str | None], Sequence[EdgeOutput]]


class HeadInput:
    """One input of the head; counts records and remembers the watermark."""

    def __init__(self, head_input: Input, counters: OperatorCounters) -> None:
        self._counters = counters
        self._process = head_input.process_chunk
        self._process_some = head_input.process_some
        self._process_control = head_input.process_control
        # Written by the task thread; read anywhere, one watermark stale is fine.
        self.current_watermark = MIN_TIMESTAMP

    def process_chunk(self, chunk: Chunk) -> None:
        """Count the records, then process them."""
        self._counters.num_records_in += len(chunk)
        self._process(chunk)

    def process_some(self, chunk: Chunk) -> int:
        """Process and count records until a mail waits; returns how many; 0 if a mail comes before the first record.

        If a record fails, the records before it are counted, too.
        """
        try:
            num_done = self._process_some(chunk)
        except UserFunctionError as error:
            self._counters.num_records_in += error.num_processed
            raise
        self._counters.num_records_in += num_done
        return num_done

    def process_control(self, element: ControlElement) -> None:
        """Process a control element; a watermark is remembered first."""
        if isinstance(element, Watermark):
            self.current_watermark = element.timestamp
        self._process_control(element)


class OperatorChain:
    """Runs the operators of one task.

    Threading: task thread; counters and watermarks may be read anywhere, one chunk stale.
    Life cycle: ``open`` -> ``process_*`` -> ``finish`` -> ``close``; ``close`` is allowed in every state, any number of
        times.

    Args:
        chained: the operators, head first; each comes after the one that it reads.
        edge_outputs: the outputs of the task.
        context_factory: makes the context of an operator from its index and name.
    """

    def __init__(
        self,
        chained: Sequence[ChainedOperator],
        edge_outputs: EdgeOutputs,
        context_factory: Callable[[int, str], OperatorContext],
    ) -> None:
        self.operators = [item.operator for item in chained]
        self.head = self.operators[0]  # reads the task's input, or is its source
        # Whether chunks may go into the chain in pieces: no function of the user gets whole batches.
        self.cuts_chunks = not any(operator.takes_batches for operator in self.operators)
        self.contexts = [context_factory(index, operator.name) for index, operator in enumerate(self.operators)]
        self._chained = chained
        self._with_edges = sorted({index for index, _ in edge_outputs})
        self._opened: list[StreamOperator] = []
        self._outputs: dict[int, OperatorOutput] = {}
        self._consumers: dict[int, Consumer] = {}  # by index of the operator behind the head
        for index in reversed(range(len(chained))):
            self._outputs[index] = self._output_of(index, edge_outputs)
            self.operators[index].setup(self.contexts[index], self._outputs[index])
        # Gets the number of each mark that has passed all operators.
        self.on_mark_passed: Callable[[int], None] | None = None
        ends = sorted(set(range(len(chained))) - {item.parent for item in chained[1:]})
        self._marks = MarkValve(len(ends))
        for channel, index in enumerate(ends):
            self._outputs[index].on_mark = partial(self._mark_left, channel)
        counters = self.contexts[0].counters
        self.head_inputs = [HeadInput(head_input, counters) for head_input in self.head.inputs()]
        self.process_chunk = self.head_inputs[0].process_chunk
        self.process_control = self.head_inputs[0].process_control

    def __repr__(self) -> str:
        return f"<OperatorChain {' -> '.join(operator.name for operator in self.operators)}, {len(self._opened)} open>"

    def _output_of(self, index: int, edge_outputs: EdgeOutputs) -> OperatorOutput:
        """The output of an operator; the operators that read it must have theirs already."""
        by_tag: dict[str | None, list[Consumer]] = {None: []}
        for child, item in enumerate(self._chained):
            if child > 0 and item.parent == index:
                consumer = self._consumers[child] = self._consumer(child)
                by_tag.setdefault(item.tag, []).append(consumer)
        for (source, tag), outputs in edge_outputs.items():
            if source == index:
                conversion = self._conversion(index, tag)
                by_tag.setdefault(tag, []).extend(
                    [ChunkingOutput(output, getattr(output, "keys", None), conversion) for output in outputs]
                )
        main = by_tag.pop(None)
        sides = {tag: consumers for tag, consumers in by_tag.items() if tag is not None}
        context = self.contexts[index]
        return OperatorOutput(self.operators[index].name, main, sides, context.counters, context.attention)

    def _mark_left(self, channel: int, mark: CompletionMark) -> None:
        passed = self._marks.receive(channel, mark)
        if passed is not None and self.on_mark_passed is not None:
            self.on_mark_passed(passed.number)

    def _consumer(self, child: int) -> Consumer:
        operator, context = self.operators[child], self.contexts[child]
        selector, counters = self._chained[child].key_selector, context.counters
        keys = None
        if selector is not None:
            select = getattr(selector, "get_key", selector)
            keys = KeyExtractor(select, "key_by", context.subtask, selector=selector, attention=context.attention)
        item = self._chained[child]
        conversion = None if item.takes_unconverted else self._conversion(item.parent, item.tag)
        if operator.takes_chunks and not (keys is not None and operator.takes_keyed_records):
            return ChunkingOutput(ChainedInput(operator, counters), keys, conversion)
        if keys is not None:
            return KeyedConsumer(operator, self._outputs[child].loop_ends, counters, conversion, keys)
        return ChainedConsumer(operator, self._outputs[child].loop_ends, counters, conversion)

    def _conversion(self, index: int, tag: str | None) -> RecordConversion | None:
        """The conversion to the declared type of an operator's output; None: no type is declared."""
        declared = self.operators[index].declared_outputs.get(tag)
        return (
            None
            if declared is None
            else RecordConversion(declared, preview, self.operators[index].name, self.contexts[index].subtask)
        )

    def input_of(self, index: int) -> Callable[[Chunk], int]:
        """Return a function that gives records to an operator after the head as its parent does, until a mail waits,
        and returns how many it gave.
        """
        context = self.contexts[index]
        return input_of(self.operators[index].name, self._consumers[index], context.interrupts, context.attention)

    @property
    def num_records_in(self) -> int:
        """Records that entered the head; 0 if it is a source."""
        return self.contexts[0].counters.num_records_in

    @property
    def num_records_out(self) -> int:
        """Records that left the task; each counts once, however many edges it took."""
        return sum(self.contexts[index].counters.num_records_out for index in self._with_edges)

    def input_watermarks(self, index: int) -> list[int]:
        """The last watermark of each input of an operator, in milliseconds; inside a chain, the last one that its
        parent emitted.
        """
        if index == 0:
            return [each.current_watermark for each in self.head_inputs]
        return [self._outputs[self._chained[index].parent].current_watermark]

    def output_watermark(self, index: int) -> int:
        """The last watermark that an operator emitted, in milliseconds."""
        return self._outputs[index].current_watermark

    # -- life

    def open(self) -> None:
        """Open the operators, last to first, so that no operator emits into one that is not open."""
        for operator in reversed(self.operators):
            operator.ctx.attention.check()  # the open() before may have taken a minute
            # Before the call: after an open() that fails, close() must release its resources, too.
            self._opened.append(operator)
            operator.open()

    def finish(self, before_finish: Callable[[int], None] | None = None) -> None:
        """Let the operators emit their last records, first to last; called when all inputs have ended.

        ``before_finish`` gets the index of each operator before it finishes.  It stops the operator's timers and runs
        the mails that were accepted, including deferrable ones (FLINK-39481).
        """
        for index, operator in enumerate(self.operators):
            operator.ctx.attention.check()  # the finish() before may have taken a minute
            # The task has ended the input of a head before; of a head that holds records only now, once it is drained.
            if index > 0 or operator.holds_records:
                operator.end_input(1)
            if before_finish is not None:
                before_finish(index)
            operator.finish()

    def stop_emitting(self) -> None:
        """Keep work in progress in the operators, for the snapshot that follows: they will not finish."""
        for operator in self.operators:
            operator.stop_emitting()

    def close(self) -> None:
        """Close all opened operators, first to last, even if some raise.

        Raises:
            Exception: the first error of an operator, with notes about the others.
        """
        operators, self._opened = self._opened[::-1], []
        raise_first(errors_of(operator.close for operator in operators))


def errors_of(steps: Iterable[Callable[[], object]]) -> list[BaseException]:
    """Take all steps even if some raise; returns their errors."""
    errors: list[BaseException] = []
    for step in steps:
        try:
            step()
        except BaseException as error:  # noqa: BLE001 - reported by the caller; the other steps must be taken
            errors.append(error)
    return errors


def raise_first(errors: Sequence[BaseException]) -> None:
    """Raise the first error, with notes about the others; returns if there is none."""
    if not errors:
        return
    first, *others = errors
    for other in others:
        first.add_note(f"then {type(other).__name__}: {other}")
    raise first
