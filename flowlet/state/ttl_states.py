"""States whose entries expire.

Each kind keeps its entries in a state without expiry, as pairs of the user's value and the time of its last use.

Side:       task.
Invariants: an entry has expired once ``ttl`` milliseconds have passed since it was last used.  One that is found
            expired is removed at once, even where it is still returned.
Units:      milliseconds of processing time.
Source:     Flink ``TtlValueState``, ``TtlListState``, ``TtlMapState``, ``TtlReducingState``, ``TtlAggregatingState``,
            ``TtlUtils``.  The last two are made of a ``TtlValueState``.
"""

from collections.abc import Callable, Iterable
from typing import Any

from flowlet.datastream.state import ListState, MapState, ValueState
from flowlet.datastream.states.state_ttl_config import StateTtlConfig
from flowlet.state.declared_values import DeclaredValues, MapEntry
from flowlet.state.state_snapshots import StateKind


class Expiry:
    """Decides which entries have expired.

    Args:
        config: how long they live.
        now_ms: the clock.
    """

    def __init__(self, config: StateTtlConfig, now_ms: Callable[[], int]) -> None:
        self.ttl_ms = config.get_ttl().to_milliseconds()
        self.now_ms = now_ms
        self.clean: Callable[[], None] | None = None  # called at every access
        self.is_extended_by_reads = config.get_update_type() is StateTtlConfig.UpdateType.OnReadAndWrite
        self.returns_expired = (
            config.get_state_visibility() is StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp
        )

    def access_ms(self) -> int:
        """The time of an access of the state, which may first remove some expired entries of any key."""
        if self.clean is not None:
            self.clean()
        return self.now_ms()

    def has_expired(self, used_ms: int, now_ms: int) -> bool:
        """Whether an entry that was last used at ``used_ms`` has expired."""
        # A clock that is set back makes the difference negative: such an entry lives.
        return now_ms - used_ms >= self.ttl_ms

    def live(self, kind: StateKind, stored: Any, now_ms: int) -> Any:
        """The part of a key's entry, or of a row of a snapshot, that has not expired; any thread.

        ``stored`` itself if all of it lives, None if nothing does.
        """
        match kind:
            case StateKind.LIST:
                # In the type of what is stored: a list in a table, a tuple in a row of a snapshot.
                kept: Any = type(stored)(pair for pair in stored if not self.has_expired(pair[1], now_ms))
            case StateKind.MAP if isinstance(stored, dict):
                kept = {key: each for key, each in stored.items() if not self.has_expired(_used_ms(each), now_ms)}
            case StateKind.MAP:
                kept = tuple((key, pair) for key, pair in stored if not self.has_expired(pair[1], now_ms))
            case _:
                return None if self.has_expired(stored[1], now_ms) else stored
        if not kept:
            return None
        # Itself, so that the caller sees that there is no change to write.
        return stored if len(kept) == len(stored) else kept


class _TtlState:
    """A state whose values are stored with the time of their last use."""

    __slots__ = ("_declared", "_expiry", "_stored")

    def __init__(self, stored: Any, expiry: Expiry, declared: DeclaredValues) -> None:
        self._stored = stored
        self._expiry = expiry
        self._declared = declared

    def clear(self) -> None:
        """Remove the entry of the current key."""
        self._stored.clear()


class TtlValueState(_TtlState, ValueState[Any]):
    """A value per key that expires."""

    __slots__ = ()

    def value(self) -> Any:
        """The value of the current key; None if it has none."""
        expiry = self._expiry
        # ``access_ms`` written out: a read of a missing key need not look at the clock.
        if expiry.clean is not None:
            expiry.clean()
        pair = self._stored.value()
        if pair is None:
            return None
        value, used_ms = pair
        now_ms = expiry.now_ms()
        if expiry.has_expired(used_ms, now_ms):
            # Also where it is returned: it is seen this once, and not again.
            self._stored.clear()
            return value if expiry.returns_expired else None
        # Within one millisecond there is nothing to extend: reads of a hot key write once in each.
        if expiry.is_extended_by_reads and now_ms != used_ms:
            self._stored.update((value, now_ms))
        return value

    def update(self, value: Any) -> None:
        """Replace the value of the current key; None clears it."""
        # The value is checked before the clean-up and the clock: a refused one costs neither.
        pair = None if value is None else (self._declared.entered(value), self._expiry.access_ms())
        self._stored.update(pair)


class TtlListState(_TtlState, ListState[Any]):
    """A list per key, each of whose elements expires."""

    __slots__ = ()

    def elements(self) -> list[Any]:
        """The elements of the current key's list, in a list of the caller's own."""
        expiry = self._expiry
        now_ms = expiry.access_ms()
        pairs = self._stored.elements()
        live = [pair for pair in pairs if not expiry.has_expired(pair[1], now_ms)]
        # One write for both: what expired goes with it.
        if live and expiry.is_extended_by_reads:
            self._stored.update([(value, now_ms) for value, _ in live])
        elif len(live) < len(pairs):
            self._stored.update(live)
        return [value for value, _ in (pairs if expiry.returns_expired else live)]

    get = elements  # PyFlink's name

    def add(self, value: Any) -> None:
        """Append to the list of the current key."""
        self._stored.add((self._declared.entered(value), self._expiry.access_ms()))

    def add_all(self, values: Iterable[Any]) -> None:
        """Append values to the list of the current key."""
        # Before the time: ``values`` may be a generator that takes long.
        added = self._declared.all_entered(values)
        now_ms = self._expiry.access_ms()
        self._stored.add_all([(value, now_ms) for value in added])

    def update(self, values: Iterable[Any]) -> None:
        """Replace the list of the current key; an empty one clears it."""
        elements = self._declared.all_entered(values)
        now_ms = self._expiry.access_ms()
        self._stored.update([(value, now_ms) for value in elements])


class TtlMapState(_TtlState, MapState[Any, Any]):
    """A map per key of the stream, each of whose entries expires."""

    __slots__ = ()

    def get(self, key: Any) -> Any:
        """The value of a key of the map; None if there is none."""
        found = self._found(key)
        return None if found is None else found[0]

    def put(self, key: Any, value: Any) -> None:
        """Set the value of a key of the map."""
        # Here, as the state inside takes pairs, and checks neither key nor value.
        self._declared.check_key(key)
        self._stored.put(key, (self._declared.entered(value), self._expiry.access_ms()))

    def remove(self, key: Any) -> None:
        """Remove a key of the map, if it is there."""
        self._stored.remove(key)

    def contains(self, key: Any) -> bool:
        """Whether the map has a key."""
        return self._found(key) is not None

    def items(self) -> list[tuple[Any, Any]]:
        """Keys and values of the map, in a list of the caller's own."""
        now_ms = self._expiry.access_ms()
        # ``items`` gave a list of its own: ``_seen`` removes and renews entries on the way.
        found = [(key, self._seen(key, pair, now_ms)) for key, pair in self._stored.items()]
        return [(key, pair[0]) for key, pair in found if pair is not None]

    def is_empty(self) -> bool:
        """Whether the map has no keys."""
        # All of them, as some may have expired.
        return not self.items()

    def _found(self, key: Any) -> Any:
        now_ms = self._expiry.access_ms()
        pair = self._stored.get(key)
        return None if pair is None else self._seen(key, pair, now_ms)

    def _seen(self, key: Any, pair: Any, now_ms: int) -> Any:
        """The pair if a reader may see it, else None; removes an expired entry, and renews one that reads extend."""
        expiry = self._expiry
        if expiry.has_expired(pair[1], now_ms):
            self._stored.remove(key)
            return pair if expiry.returns_expired else None
        if expiry.is_extended_by_reads and now_ms != pair[1]:
            self._stored.put(key, (pair[0], now_ms))
        return pair


def _used_ms(stored: Any) -> int:
    """The time at which an entry of a map was last used."""
    used_ms: int = (stored.value if type(stored) is MapEntry else stored)[1]
    return used_ms
