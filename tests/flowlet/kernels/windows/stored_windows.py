"""The state of windows of columns, as a checkpoint has it."""

from collections.abc import Iterable
from typing import Any

import cloudpickle

from flowlet.kernels.windows.window_shapes import WindowTables
from flowlet.state.state_snapshots import ColumnBlock
from flowlet.windows.window_blocks import known_blocks, put_blocks, row_blocks

MAX_PARALLELISM = 8


def stored(windows: WindowTables[Any], groups: range = range(MAX_PARALLELISM)) -> list[ColumnBlock]:
    """Return the blocks of a subtask."""
    keys, progress, tables = windows.state()
    blocks = [*known_blocks(progress, groups), *row_blocks(keys, tables, MAX_PARALLELISM)]
    return cloudpickle.loads(cloudpickle.dumps(blocks))  # type: ignore[no-any-return]  # a copy of the blocks


def restored(windows: WindowTables[Any], blocks: Iterable[ColumnBlock], groups: range) -> None:
    """Go on with the blocks of some key groups."""
    assert not put_blocks(windows, [each for each in blocks if each.group in groups], None, MAX_PARALLELISM)
