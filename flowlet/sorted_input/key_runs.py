"""From sorted blocks to records key by key.

Hot path, per block and key: few records of one key are cut from lists, because columns cost more to cut.

Side:       pure.
Invariants: the records of a key are handed over together, in the order of their timestamps.
Source:     Flink ``SortingDataInput``, ``MultiInputSortingDataInput``: of several inputs key by key, and within a key
            by timestamp.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from flowlet.records import MIN_TIMESTAMP, Chunk
from flowlet.sorted_input.sort_codes import Codes, alike, as_bytes, concatenated, sortable
from flowlet.sorted_input.sorted_block import Block
from flowlet.sorted_input.sorted_merge import merge_steps
from netstack.late import dataclass

_LEAST_ROWS_IN_COLUMNS: Final = 64  # on average for a key; not measured closely


@dataclass(frozen=True, slots=True)
class KeyRun:
    """Records of one input.

    ``begins_key``: the keys before have no more records.  ``input_index``: from 0.
    """

    input_index: int
    chunk: Chunk
    begins_key: bool


def key_runs(inputs: Sequence[Iterable[Block]]) -> Iterator[KeyRun]:
    """The records of all inputs, each run of one key and one input."""
    if len(inputs) == 1:
        yield from _runs_of_one(inputs[0])
    else:
        yield from _runs_of_many(inputs)


def open_runs(inputs: Sequence[Iterable[Block]]) -> Iterator[KeyRun]:
    """The records of all inputs; a run ends only where a key may go on in the next block, so it has many keys.

    Of several inputs the runs of the same keys follow each other, those of the first input first, whatever the
    timestamps.
    """
    last: Codes | None = None
    for parts in merge_steps(inputs):
        codes = alike([part.codes for _, part in parts])
        comparable = [sortable(each) for each in codes]
        first = min(range(len(codes)), key=lambda number: comparable[number][0])
        final = max(range(len(codes)), key=lambda number: comparable[number][-1])
        begins_key = last is not None and _differ(codes[first][:1], last)
        last = codes[final][-1:]
        greatest = comparable[final][-1]
        starts = [int(np.searchsorted(each, greatest, "left")) for each in comparable]
        for (number, part), start in zip(parts, starts, strict=True):
            if start:
                yield KeyRun(number, part.chunk.slice(0, start), begins_key)
                begins_key = False
        begins_key |= any(starts)
        for (number, part), start in zip(parts, starts, strict=True):
            if start < len(part):
                yield KeyRun(number, part.chunk.slice(start, len(part)), begins_key)
                begins_key = False


def _runs_of_one(blocks: Iterable[Block]) -> Iterator[KeyRun]:
    last: Any = None
    for block in blocks:
        if not len(block):
            continue
        begins_key = _is_new(block, last)
        last = block
        starts = block.key_starts().tolist()
        chunk = _to_cut(block.chunk, len(starts))
        for start, stop in zip(starts, [*starts[1:], len(block)], strict=True):
            yield KeyRun(0, chunk.slice(start, stop), begins_key)
            begins_key = True


def _is_new(block: Block, before: Block | None) -> bool:
    """Whether the first key of a block is another than the last one of the block before."""
    return before is not None and _differ(block.codes[:1], before.codes[-1:])


def _differ(code: Codes, other: Codes) -> bool:
    return bool(as_bytes(code)[0] != as_bytes(other)[0])


def _runs_of_many(inputs: Sequence[Iterable[Block]]) -> Iterator[KeyRun]:
    last: Block | None = None
    for parts in merge_steps(inputs):
        merged = concatenated(alike([part.codes for _, part in parts]))
        stamps = np.concatenate(
            [np.full(len(part), MIN_TIMESTAMP) if part.stamps is None else part.stamps for _, part in parts]
        )
        owners = np.repeat(np.arange(len(parts)), [len(part) for _, part in parts])
        rows = np.lexsort((owners, stamps, sortable(merged)))
        merged, owners = merged.take(rows), owners.take(rows)
        codes = sortable(merged)
        is_other_key = np.concatenate(([False], codes[1:] != codes[:-1]))
        starts = np.flatnonzero(np.concatenate(([True], is_other_key[1:] | (owners[1:] != owners[:-1])))).tolist()
        cursors = [0] * len(parts)
        chunks = [_to_cut(part.chunk, len(starts)) for _, part in parts]
        step = Block(chunks[0], merged)
        begins_key = _is_new(step, last)
        last = step
        for start, stop in zip(starts, [*starts[1:], len(codes)], strict=True):
            owner = int(owners[start])
            begin, cursors[owner] = cursors[owner], cursors[owner] + stop - start
            yield KeyRun(
                parts[owner][0], chunks[owner].slice(begin, cursors[owner]), begins_key or bool(is_other_key[start])
            )
            begins_key = False


def _to_cut(chunk: Chunk, num_parts: int) -> Chunk:
    """The same records in a list, if the parts are small."""
    columns = chunk.columns
    if columns is None or len(chunk) >= num_parts * _LEAST_ROWS_IN_COLUMNS:
        return chunk
    listed = Chunk(chunk.values, chunk.timestamps)
    if columns.key_position is not None:
        listed.keys = columns.fields[columns.key_position].to_list()
    return listed
