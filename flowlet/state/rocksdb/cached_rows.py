"""``StateKeys``: the keys of one state in RocksDB, and the budget of its caches.

``CachedRows``: rows in RocksDB that an aggregation works on, a generation of them at a time.

The operator holds the rows of the keys that came since the generation began, in the form that its loops need, and pays
nothing here for a key that it holds.  It asks for the row of any other key (``load``).  When its rows take too much,
and at each snapshot, all of them are written in one batch, and a new generation begins with none: a hot set that fits
is written, and read again, once per checkpoint.

Hot path, per key that is new in its generation (bench: state).

Side:       task.
Invariants: a held row is newer than its row in RocksDB; a row that is not held is there.  A generation ends before a
            chunk or where a row is loaded, and never between the look at a row and its change.
Units:      bytes of memory, estimated from some rows of each chunk.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from flowlet.errors import FlowletError
from flowlet.keys.exact_keys import READABLE_TYPES as PLAIN
from flowlet.keys.exact_keys import key_bytes, key_group
from flowlet.keys.key_columns import exact_key_groups, key_for
from flowlet.serde.pickles.record_pickle import loads_value
from flowlet.state.declared_values import DeclaredValues
from flowlet.state.rocksdb.rocksdb_store import WITH_KEYS, RocksDBStore, memory_size, row_content, row_prefix
from flowlet.state.state_snapshots import RowHolder, StateDescription, StateKind
from flowlet.state.state_table import ExactKeys
from flowlet.timers.keyed_timer_service import KeyContext
from netstack.late import dataclass

if TYPE_CHECKING:
    import rocksdict

_ENTRY_BYTES: Final = 200  # of dictionaries and arrays, per row
# Measuring a value costs as much as some updates, so one update in 64 of the keys that were counted since the last
# flush is measured.  If its value has grown, all keys are counted again by their next updates.  Where 64 values as
# large as the last one would be more than a sixteenth of the budget, more updates are measured.
_UPDATES_UNSEEN: Final = 64
_SHARE_UNSEEN: Final = 16
_FORMER_SHARE: Final = 4  # how slowly the estimate follows: by one part in so many


@dataclass(eq=False)
class StateKeys(ExactKeys):
    """The exact keys of one state, and the bytes that its rows begin with."""

    state_id: int
    store: RocksDBStore
    context: KeyContext
    declared: DeclaredValues
    description: StateDescription

    def __post_init__(self) -> None:
        """Keep values that each access needs as attributes: reading them through the store takes longer."""
        self.is_checked = self.declared.is_serialized_checked
        self.budget = self.store.budget

    def prefix(self, key: Any, exact: Any) -> bytes:
        """The bytes that the rows of a key begin with."""
        return row_prefix(key_group(key, self.store.max_parallelism), self.state_id, key_bytes(exact))

    def charge(self, old: int, new: int) -> bool:
        """Count ``new`` bytes in place of ``old``; called before they are stored.

        Returns whether all caches were emptied for that: then no earlier charge is left, and ``new`` is charged alone.
        """
        if not self.budget.charge(old, new):
            return False
        self.store.make_room()
        self.budget.charge(0, new)
        return True

    def num_unseen(self, size: int) -> int:
        """How many of the next updates may pass unmeasured, after a value of this size was measured."""
        # Bounded by the budget, too: 64 large values that nobody measured could fill the memory.
        return min(_UPDATES_UNSEEN, self.budget.limit // (_SHARE_UNSEEN * size))

    def dumped(self, value: Any, *keys: Any) -> bytes:
        """The content of a row (``row_content``).

        Raises FlowletError: it cannot be pickled, or is of another type than declared.
        """
        # Here, and not where they enter: a value is written less often than it is changed.
        if self.is_checked:
            # A row of a map is one entry.
            kind = StateKind.LIST if self.description.kind is StateKind.LIST else StateKind.VALUE
            self.declared.check_rows(kind, [value], has_ttl=self.description.has_ttl)
        try:
            return row_content(value, *keys)
        except Exception as error:
            raise FlowletError(
                f"state {self.name!r} holds a value that cannot be pickled into RocksDB ({error}); keep values that "
                "can be pickled"
            ) from error


class CachedRows:
    """The rows of one operator.

    Args:
        keys: the keys of its state, with the store.
        holder: the operator.

    Attributes:
        is_shared: whether functions of the operator use states in this store, too, so that the store may write while a
            record is processed.
    """

    def __init__(self, keys: StateKeys, holder: RowHolder) -> None:
        self._keys = keys
        self._holder = holder
        self.is_shared = False
        self._is_ending = False
        self._is_over = False  # the store wrote all rows while a record was processed: the generation is to end
        self._num_rows = 0  # of this generation; the budget is charged for them
        self._row_bytes = 2 * _ENTRY_BYTES
        keys.store.caches.append(self)

    def __repr__(self) -> str:
        return f"<CachedRows of {self._num_rows} keys in {self._keys.store!r}>"

    def begin(self, samples: Sequence[Any] = ()) -> None:
        """Begin a new generation if the rows take too much; called before a chunk, and before ``load``.

        ``samples``: some values, from which the size of a row is estimated.
        """
        budget = self._keys.budget
        if samples:
            size = _ENTRY_BYTES + sum(map(memory_size, samples)) // len(samples)
            # Slowly: a chunk of unusual values must not end the generation by itself.
            size = self._row_bytes + (size - self._row_bytes) // _FORMER_SHARE
            budget.charge(self._num_rows * self._row_bytes, self._num_rows * size)
            self._row_bytes = size
        if self._is_over or budget.used > budget.limit:
            self.end()

    def end(self) -> None:
        """Write all rows, and begin a new generation."""
        # ``flush`` is also called to make room for another state, while a row may be in use: here none is.
        self._is_ending = True
        self._keys.store.make_room()
        self._is_ending = False

    def load(self, exact: Any, absent: Any) -> Any:
        """The row of a key that the holder does not hold; ``absent`` if there is none."""
        key = exact if type(exact) in PLAIN else key_for(exact)
        content = self._keys.store.get(self._keys.prefix(key, exact))
        # Also for an absent one: the holder keeps a row for it from now on.
        self._num_rows += 1
        self._keys.budget.charge(0, self._row_bytes)
        if content is None:
            return absent
        return loads_value(content) if content[0] != WITH_KEYS else loads_value(content[1:])[1]

    def flush(self, batch: "rocksdict.WriteBatch") -> None:
        """Put all held rows into the batch, and end the generation, if no record is being processed."""
        keys = self._keys
        held, values = self._holder.held_rows()
        groups = exact_key_groups(held, keys.store.max_parallelism).tolist() if held else ()
        for exact, value, group in zip(held, values, groups, strict=True):
            content = keys.dumped(value, exact if type(exact) in PLAIN else key_for(exact))
            batch.put(row_prefix(group, keys.state_id, key_bytes(exact)), content)
        # The operator's loop may be at work on one of these rows: they stay until ``begin``.
        self._is_over = self.is_shared and not self._is_ending
        if not self._is_over:
            keys.budget.charge(self.held_bytes(), 0)
            self._num_rows = 0
            self._holder.take_rows([], [])

    def forget(self) -> None:
        """Do nothing: ``flush`` has dropped the rows, or they stay until the record was processed."""

    def held_bytes(self) -> int:
        """The bytes of all held rows, by the present estimate."""
        return self._num_rows * self._row_bytes
