"""``CachedColumns``: rows of columns in RocksDB that windows work on, a generation of them at a time.

The operator holds the rows that came since the generation began, in the arrays that its loops need.  New rows of a key
are added without reading its older rows in RocksDB.  When the held rows take too much memory, and at each snapshot, all
of them are written in blocks, one for each key group and, where there are many rows, each start.  When windows may end
(``due``), the rows of these windows come back, as many key groups at a time as there is room for.

Hot path, per chunk (bench: state).

Side:       task.
Invariants: of the rows of one key and start, those in a block with a lower number are older, and held rows are the
            newest.  No row in RocksDB starts before ``_first``, nor is needed before ``next_end``; ``_first`` is
            ``ALL_STARTS`` if there is none.
Units:      bytes of memory, estimated by the operator; starts as the operator counts them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from flowlet.state.rocksdb.rocksdb_store import RocksDBStore, keys_between, row_prefix, rows_between, taken_apart
from flowlet.state.state_snapshots import ALL_STARTS, ColumnBlock, ColumnHolder, first_block_key

if TYPE_CHECKING:
    import rocksdict

_KNOWN: Final = 0  # the table with the one block of facts about a key group


class CachedColumns:
    """The rows of one operator.

    Args:
        state_id: the number of the state.
        store: the database with the rows.
        key_groups: of the subtask.
        holder: the operator; takes the facts about the key groups.

    Attributes:
        next_end: a time before which no row in RocksDB is needed; None: there are no rows.
    """

    def __init__(self, state_id: int, store: RocksDBStore, key_groups: range, holder: ColumnHolder) -> None:
        self._state_id = state_id
        self._store = store
        self._key_groups = key_groups
        self._holder = holder
        self._tables = range(1, 1 + holder.num_tables)
        self._held_bytes = 0  # charged to the budget
        self._number = 0  # of the next generation's blocks
        self._first = ALL_STARTS
        known = [block for group in key_groups for block in self._blocks(group, (_KNOWN,), -ALL_STARTS, ALL_STARTS)]
        holder.take_blocks(known)
        for group in key_groups:
            for table in self._tables:
                # Their keys alone: rows are not read before a window needs them.
                for row in keys_between(store.db, *self._bounds(group, table, -ALL_STARTS, ALL_STARTS)):
                    block = ColumnBlock.with_key(group, taken_apart(row)[2], b"")
                    self._number = max(self._number, block.number + 1)
                    self._first = min(self._first, block.start)
        self.next_end = None if self._first == ALL_STARTS else holder.windows.first_end(self._first)
        store.caches.append(self)

    def __repr__(self) -> str:
        return f"<CachedColumns of {self._held_bytes} bytes in {self._store!r}>"

    def settle(self) -> None:
        """Begin a new generation if the held rows take too much; called after each chunk."""
        if self._charge():
            self._store.make_room()

    def _charge(self) -> bool:
        """Charge for the rows that are held; returns whether they take too much."""
        held_bytes = self._holder.windows.num_bytes
        is_full = self._store.budget.charge(self._held_bytes, held_bytes)
        self._held_bytes = held_bytes
        return is_full

    # -- rows that are needed

    def due(self, time: int, before: int) -> Iterator[None]:
        """At each item, hold all rows of some keys that are needed at ``time``; they start before ``before``.

        In the end each key was held once, and rows of it that stayed are not brought a second time.
        """
        # The held rows are enough: the usual case, without a look at RocksDB.
        if self.next_end is None or self.next_end > time:
            yield
            return
        budget = self._store.budget
        blocks = self._some(before, budget.limit - budget.used)
        if blocks is None:
            self._store.make_room()  # the rows that are held belong to those in RocksDB
        first = self._first
        # From here on both fields describe the rows that stay in RocksDB, and rows that are written on the way.
        self._first = before
        self.next_end = self._holder.windows.first_end(before) if before < ALL_STARTS else None
        if blocks is not None:
            self._bring(blocks, before)
            self._charge()
            yield
            return
        # Group by group: all rows together would not fit.
        for group in self._key_groups:
            self._bring(list(self._blocks(group, self._tables, first, before)), before)
            self._charge()
            # Half, so that the next group may take as much again.
            if 2 * budget.used > budget.limit:
                yield
                self._store.make_room()
        yield

    def _some(self, before: int, max_bytes: int) -> list[ColumnBlock] | None:
        """The blocks of all key groups that start before ``before``; None: they have more than ``max_bytes``."""
        found: list[ColumnBlock] = []
        for group in self._key_groups:
            for block in self._blocks(group, self._tables, self._first, before):
                # Counted while they are read: it stops at the first one that is too much.
                max_bytes -= len(block.content)
                if max_bytes < 0:
                    return None
                found.append(block)
        return found

    def bring(self, groups: Iterable[int], before: int) -> None:
        """Hold the rows of these key groups that start before ``before``."""
        first = self._first
        if first < before:
            found = [block for group in groups for block in self._blocks(group, self._tables, first, before)]
            self._bring(found, before)

    def _bring(self, blocks: list[ColumnBlock], before: int) -> None:
        """Move rows from RocksDB to the operator."""
        if not blocks:
            return
        batch = self._store.new_batch()
        # Deleted and put back in one batch: a block that goes on keeps its key.
        for block in blocks:
            batch.delete(self._row(block))
        for rest in self._holder.take_blocks(blocks, before):
            batch.put(self._row(rest), rest.content)
        self._store.write(batch)

    def _blocks(self, group: int, tables: Iterable[int], first: int, before: int) -> Iterator[ColumnBlock]:
        for table in tables:
            for row, content in rows_between(self._store.db, *self._bounds(group, table, first, before)):
                yield ColumnBlock.with_key(group, taken_apart(row)[2], content)

    def _bounds(self, group: int, table: int, first: int, before: int) -> list[bytes]:
        return [row_prefix(group, self._state_id, first_block_key(table, start)) for start in (first, before)]

    def _row(self, block: ColumnBlock) -> bytes:
        return row_prefix(block.group, self._state_id, block.key)

    # -- a cache of the store

    def flush(self, batch: "rocksdict.WriteBatch") -> None:
        """Put all held rows into the batch, as blocks, and end the generation."""
        next_end = self._holder.windows.next_end()
        if next_end is not None:
            self.next_end = next_end if self.next_end is None else min(self.next_end, next_end)
        for block in self._holder.held_blocks(in_order=True)():
            if block.table == _KNOWN:  # replaces the one that was there
                batch.put(self._row(block), block.content)
                continue
            # Blocks are found from ``_first`` on: one that starts earlier would never come back.
            self._first = min(self._first, block.start)
            batch.put(self._row(replace(block, number=self._number)), block.content)
        # A start that comes back in a later generation has newer rows: its block must not replace this one.
        self._number += 1
        # Behind the loop, whose blocks are made of these rows.
        self._holder.windows.forget_rows()
        self._store.budget.charge(self._held_bytes, 0)
        self._held_bytes = 0

    def forget(self) -> None:
        """Do nothing: ``flush`` has dropped the rows."""

    def held_bytes(self) -> int:
        """The bytes of all held rows, as they were last charged."""
        return self._held_bytes
