"""Reads inputs of a task in the order of BATCH mode: broadcast inputs first; inputs that are sorted by key are handed
over key by key when all have been read.

``key_runs`` and ``open_runs``: from sorted blocks to the records of one key, or of several.

Hot path, per block and key: few records of one key are cut from lists, because columns cost more to cut.

Side:       task.
Invariants: the records of a key are handed over together, in the order of their timestamps.  The head gets a sorted
            input's records only after all inputs have ended, so broadcast records come before them.  Sorted inputs pass
            on only the last watermark.  When a new key begins, the keys before it have ended.
Source:     Flink ``SortingDataInput``, ``MultiInputSortingDataInput``: of several inputs key by key, and within a key
            by timestamp.  Flink ``SortingDataInput``, ``MultiInputSortingDataInput``,
            ``BatchExecutionInternalTimeService``.
Absent:     checkpoints, which BATCH jobs do not take.
"""

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum, auto
from typing import Any, Final

import numpy as np

from flowlet.chain.record_slices import RecordSlices
from flowlet.chain.stream_operator import Input, InputStatus
from flowlet.columns import Column, ListColumn
from flowlet.io.input_processor import InputProcessor, MultipleInputProcessor
from flowlet.keys.column_key import ColumnValue
from flowlet.mailbox.task_mailbox import Attention
from flowlet.records import MAX_WATERMARK, Chunk, ControlElement, LatencyMarker, StreamElement
from flowlet.sorted_input.external_sorter import ExternalSorter
from flowlet.sorted_input.sorted_block import Block, CodeArray, as_bytes, known_keys, merge_steps, order_of, stamps_of
from netstack.late import dataclass

_LEAST_ROWS_IN_COLUMNS: Final = 64  # on average for a key; not measured closely


@dataclass(frozen=True, slots=True)
class KeyRun:
    """Records of one input.

    ``begins_key``: whether the keys before it have no more records.  ``input_index``: from 0.
    """

    input_index: int
    chunk: Chunk
    begins_key: bool


def key_runs(inputs: Sequence[Iterable[Block]]) -> Iterator[KeyRun]:
    """The records of all inputs, each run of one key and one input."""
    last: CodeArray | None = None
    for parts in merge_steps(inputs):
        codes = np.concatenate([part.codes for _, part in parts])
        stamps = None if len(parts) == 1 else np.concatenate([stamps_of(part) for _, part in parts])
        owners = np.repeat(np.arange(len(parts)), [len(part) for _, part in parts])
        rows = None if stamps is None else order_of(codes, stamps)
        if rows is not None:
            codes = codes.take(rows)
            owners = owners.take(rows)
        is_other_key = np.concatenate(([last is not None and _differ(codes[:1], last)], codes[1:] != codes[:-1]))
        last = codes[-1:]
        starts = np.flatnonzero(np.concatenate(([True], is_other_key[1:] | (owners[1:] != owners[:-1])))).tolist()
        cursors = [0] * len(parts)
        chunks = [_to_cut(part.chunk, len(starts)) for _, part in parts]
        for start, stop in zip(starts, [*starts[1:], len(codes)], strict=True):
            owner = int(owners[start])
            begin = cursors[owner]
            cursors[owner] += stop - start
            yield KeyRun(parts[owner][0], chunks[owner].slice(begin, cursors[owner]), bool(is_other_key[start]))


def open_runs(inputs: Sequence[Iterable[Block]]) -> Iterator[KeyRun]:
    """The records of all inputs; a run has many keys, and ends only where a key may go on in the next block.

    With several inputs the runs of some keys follow each other, the run of the first input first, whatever the
    timestamps.
    """
    last: CodeArray | None = None
    for parts in merge_steps(inputs):
        first = min((part.codes[:1] for _, part in parts), key=operator.itemgetter(0))
        begins_key = last is not None and _differ(first, last)
        last = max((part.codes[-1:] for _, part in parts), key=operator.itemgetter(0))
        starts = [int(part.codes.searchsorted(last[0], "left")) for _, part in parts]
        for (number, part), start in zip(parts, starts, strict=True):
            if start:
                yield KeyRun(number, part.chunk.slice(0, start), begins_key)
                begins_key = False
        begins_key |= any(starts)
        for (number, part), start in zip(parts, starts, strict=True):
            if start < len(part):
                yield KeyRun(number, part.chunk.slice(start, len(part)), begins_key)
                begins_key = False


def _differ(code: CodeArray, other: CodeArray) -> bool:
    return bool(as_bytes(code)[0] != as_bytes(other)[0])


def _to_cut(chunk: Chunk, num_parts: int) -> Chunk:
    """These records in a list, if the parts are small."""
    columns = chunk.columns
    if columns is None or len(chunk) >= num_parts * _LEAST_ROWS_IN_COLUMNS:
        return chunk
    listed = Chunk(chunk.values, chunk.timestamps)
    listed.keys = known_keys(chunk)
    return listed


_ENDS: Final = (InputStatus.END_OF_DATA, InputStatus.STOPPED)
_MAX_STEPS: Final = 256  # then results are flushed; not measured


class SortedInput:
    """The sink of one input that is sorted, in the place of the chain's head; task thread only.

    Args:
        sorter: gets the records.
        key_selector: for records whose sender did not take the key.  With a ``ColumnValue`` the sender's keys are not
            used: they may be numbers in place of instants and dates.
        head: gets latency markers at once.
        attention: the task's.
    """

    def __init__(self, sorter: ExternalSorter, key_selector: Any, head: Input, attention: Attention) -> None:
        self.sorter = sorter
        self._attention = attention
        self._key_of: Callable[[Any], Any] = key_selector.get_key if hasattr(key_selector, "get_key") else key_selector
        self._column = key_selector.name if isinstance(key_selector, ColumnValue) else None
        self._head = head

    def __repr__(self) -> str:
        return f"<SortedInput of {self.sorter!r}>"

    def process_chunk(self, chunk: Chunk) -> None:
        """Keep the records until all inputs have ended."""
        if len(chunk):
            self.sorter.add(chunk, self._keys_of(chunk))

    def process_some(self, chunk: Chunk) -> int:
        """Keep all records; returns how many."""
        self.process_chunk(chunk)
        return len(chunk)

    def process_control(self, element: ControlElement) -> None:
        """Pass on a latency marker; event time has no meaning before records are sorted."""
        if isinstance(element, LatencyMarker):
            self._head.process_control(element)

    def _keys_of(self, chunk: Chunk) -> Column:
        columns = chunk.columns
        if self._column is not None:
            if columns is not None and self._column in columns.field_names:
                return columns.fields[columns.field_names.index(self._column)]
        elif columns is not None and columns.key_position is not None:
            return columns.fields[columns.key_position]
        elif chunk.key_column is not None:
            return chunk.key_column
        elif columns is None and chunk.keys is not None:
            return ListColumn(chunk.keys)
        key_of, attention = self._key_of, self._attention
        # A cancelled task calls a slow selector for no further record; the test takes 4 ns per record.
        keys = [key_of(record) for record in chunk.records() if not (attention and attention.is_cancelled)]
        attention.check()
        return ListColumn(keys)


@dataclass(frozen=True, slots=True)
class TaskInput:
    """One input of the task; ``collected``: takes its records if it is sorted, else None.

    ``end``: tells the chain that a sorted input has ended.  ``is_last``: whether it is read when all other inputs have
    ended.
    """

    processor: InputProcessor
    head: Input
    end: Callable[[], None]
    collected: SortedInput | None = None
    is_last: bool = False


class _Phase(Enum):
    READING = auto()  # inputs go to their sorters, or to the head
    HANDING_OVER = auto()  # all inputs have ended
    ENDED = auto()  # the end of every partition is awaited


class SortingInputProcessor(MultipleInputProcessor):
    """Reads all inputs of a task with at least one that is sorted or read last; task thread only, except
    ``current_watermark``.

    Args:
        inputs: in the order of the head's inputs.
        end_keys: called when the keys that were handed over have ended; None: keys have no end.
        must_end_singly: called when the handing over begins: whether ``end_keys`` must be called for each single key,
            or records of several inputs must meet in the order of their timestamps.
        slices: of the records that are handed over.
    """

    def __init__(
        self,
        inputs: Sequence[TaskInput],
        end_keys: Callable[[], None] | None,
        must_end_singly: Callable[[], bool],
        slices: RecordSlices[int],
    ) -> None:
        super().__init__([each.processor for each in inputs])
        self._slices = slices
        self._task_inputs = tuple(inputs)
        self._end_keys = end_keys
        self._must_end_singly = must_end_singly
        self._phase = _Phase.READING
        self._steps: Iterator[bool] = iter(())

    def process_input(self, max_buffers: int, should_stop: Callable[[], bool]) -> InputStatus:
        """Read a bounded piece of one input, or hand over records until ``should_stop``.

        Raises:
            FlowletError: a sorter's file cannot be written or read.
            UserFunctionError, SerdeError, NetstackError: as ``InputProcessor.process_input``.
        """
        if self._phase is _Phase.HANDING_OVER:
            return self._hand_over(should_stop)
        status = super().process_input(max_buffers, should_stop)
        if status in _ENDS:  # of all inputs
            self._steps = self._handing_over()
            self._phase = _Phase.HANDING_OVER
            return InputStatus.MORE_AVAILABLE
        return status

    def process_events(self) -> InputStatus:
        """Do nothing: BATCH jobs have no barriers, and their timers are not interrupted."""
        return InputStatus.MORE_AVAILABLE

    def _hand_over(self, should_stop: Callable[[], bool]) -> InputStatus:
        for _ in range(_MAX_STEPS):
            if not next(self._steps, False):
                self._phase = _Phase.ENDED
                for each in self._task_inputs:
                    if each.collected is not None:
                        each.head.process_control(MAX_WATERMARK)
                        each.end()
                return InputStatus.END_OF_DATA
            if should_stop():
                break
        return InputStatus.MORE_AVAILABLE

    def _handing_over(self) -> Iterator[bool]:
        """Hand over all records, then close the sorters; yields True after each call of the head."""
        end_keys, slices = self._end_keys, self._slices
        heads = [each.head for each in self._task_inputs if each.collected is not None]
        has_keys = False

        def process_some(input_index: int, chunk: Chunk) -> int:
            return heads[input_index].process_some(chunk)

        for run in self._runs():
            if run.begins_key and end_keys is not None:
                end_keys()
            has_keys = True
            slices.add(run.input_index, (run.chunk,))
            while slices.waiting:
                slices.process(process_some, _process_no_control, lambda: True)
                yield True
        if has_keys and end_keys is not None:
            end_keys()
        self._close_sorters()

    def _runs(self) -> Iterator[KeyRun]:
        blocks = [each.collected.sorter.sorted_blocks() for each in self._task_inputs if each.collected is not None]
        are_open = not self._must_end_singly() or (len(blocks) == 1 and self._end_keys is None)
        return open_runs(blocks) if are_open else key_runs(blocks)

    @property
    def is_available(self) -> bool:
        """Whether ``process_input`` would find data, an event or an end."""
        return self._phase is _Phase.HANDING_OVER or super().is_available

    @property
    def has_rest(self) -> bool:
        """False: records that are handed over wait for room in operators, since no barrier can be behind them."""
        return False

    @property
    def next_is_event(self) -> bool:
        """False: no event must be processed at once, as BATCH jobs have no checkpoints."""
        return False

    def advance_to_end_of_event_time(self) -> None:
        """Do nothing: the last watermark of a sorted input follows its last record, that of another input its end."""

    def close(self) -> None:
        """Release all inputs and the sorters with their files; idempotent."""
        self._steps = iter(())
        self._slices.waiting.clear()
        self._close_sorters()
        super().close()

    def _close_sorters(self) -> None:
        for each in self._task_inputs:
            if each.collected is not None:
                each.collected.sorter.close()

    def watch(self, on_available: Callable[[], None]) -> None:
        """Have ``on_available`` called, on any thread, when an input gets data; at once if records are handed over."""
        if self._phase is _Phase.HANDING_OVER:
            on_available()
        super().watch(on_available)

    def _is_awaited(self, index: int) -> bool:
        """Whether the input is to be read now: an input that is read last only when all others have no data left; ends
        of partitions only when no input has.
        """
        if self._phase is not _Phase.READING:
            return super()._is_awaited(index)
        others = (each for each in self._with_data if not self._task_inputs[each].is_last)
        return index in self._with_data and not (self._task_inputs[index].is_last and any(True for _ in others))


def _process_no_control(_input_index: int, element: StreamElement) -> None:
    raise AssertionError(f"a sorter gives records only, not {element!r}")
