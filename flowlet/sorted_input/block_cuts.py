"""Where a sorted block is cut into blocks of a good size.

Hot path, per block: one binary search per cut.

Side:       task.
Invariants: a part of more than one record has at most so many bytes, estimated; what it needs of the table of codes and
            names counts, however the keys are spread.
"""

from bisect import bisect_right
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from flowlet.sorted_input.ranked_codes import RankedCodes
from flowlet.sorted_input.sorted_block import Block
from flowlet.sorted_input.waiting_records import bytes_of


def cut(block: Block, most_bytes: int, most_rows: int) -> Iterator[Block]:
    """The same records in blocks that are no larger, each with its part of the table only; the block is sorted."""
    codes, num_rows = block.codes, len(block)
    row_bytes = bytes_of(block) / max(1, num_rows)
    if not isinstance(codes, RankedCodes):
        rows = max(1, min(most_rows, int(most_bytes / row_bytes)))
        for start in range(0, num_rows, rows):
            yield block.slice(start, min(start + rows, num_rows))
        return
    sums = np.cumsum(codes.bytes_of_keys())  # of each key and all before it
    start = 0
    while start < num_rows:
        start, begin = start + _rows_of_part(codes, sums, start, row_bytes, most_bytes, most_rows), start
        yield block.slice(begin, start).trimmed()


def _rows_of_part(
    codes: RankedCodes, sums: NDArray[np.int64], start: int, row_bytes: float, most_bytes: int, most_rows: int
) -> int:
    ranks = codes.ranks[start : start + most_rows]
    before = int(sums[ranks[0] - 1]) if ranks[0] else 0

    def size(count: int) -> int:
        return int(count * row_bytes) + int(sums[ranks[count - 1]]) - before

    return max(1, bisect_right(range(1, len(ranks) + 1), most_bytes, key=size))
