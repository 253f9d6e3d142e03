"""``StateTtlConfig``: how long an entry of a state lives, whether it may be read afterwards, and when it is removed.

Side:   pure.
Units:  milliseconds of processing time.
Source: PyFlink ``pyflink.datastream.state.StateTtlConfig``; that module exports it.
"""

from enum import Enum
from typing import Any, ClassVar, Self

from flowlet.common.time import Duration, Length, Time, duration_of, millis_of
from flowlet.errors import JobGraphError


class StateTtlConfig:
    """How long entries of a state live.  Made by ``StateTtlConfig.new_builder(ttl)``.

    An entry is a value, an element of a list, or a key of a map.
    """

    class UpdateType(Enum):
        """The accesses that make an entry live on: none, writes, or reads and writes."""

        Disabled = 0
        OnCreateAndWrite = 1
        OnReadAndWrite = 2

    class StateVisibility(Enum):
        """Whether an expired entry is still returned."""

        ReturnExpiredIfNotCleanedUp = 0
        NeverReturnExpired = 1

    class TtlTimeCharacteristic(Enum):
        """The clock."""

        ProcessingTime = 0

    def __init__(
        self,
        update_type: UpdateType,
        state_visibility: StateVisibility,
        ttl_time_characteristic: TtlTimeCharacteristic,
        ttl: Time,
        cleanup_strategies: "StateTtlConfig.CleanupStrategies",
    ) -> None:
        self._update_type = update_type
        self._state_visibility = state_visibility
        self._ttl_time_characteristic = ttl_time_characteristic
        self._ttl = ttl
        self._cleanup_strategies = cleanup_strategies

    def __repr__(self) -> str:
        parts = [self._update_type.name, self._state_visibility.name, self._ttl_time_characteristic.name]
        return f"StateTtlConfig({self._ttl.to_milliseconds()} ms, {', '.join(parts)})"

    @staticmethod
    def new_builder(ttl: Length) -> "StateTtlConfig.Builder":
        """A builder for entries that live ``ttl``, a ``Time`` or a ``Duration``."""
        return StateTtlConfig.Builder(ttl)

    def get_update_type(self) -> "StateTtlConfig.UpdateType":
        """The accesses that make an entry live on."""
        return self._update_type

    def get_state_visibility(self) -> "StateTtlConfig.StateVisibility":
        """Whether an expired entry is still returned."""
        return self._state_visibility

    def get_ttl(self) -> Time:
        """How long an entry lives."""
        return self._ttl

    def get_ttl_time_characteristic(self) -> "StateTtlConfig.TtlTimeCharacteristic":
        """The clock."""
        return self._ttl_time_characteristic

    def is_enabled(self) -> bool:
        """Whether entries expire at all."""
        return self._update_type is not StateTtlConfig.UpdateType.Disabled

    def get_cleanup_strategies(self) -> "StateTtlConfig.CleanupStrategies":
        """The strategies by which expired entries are removed."""
        return self._cleanup_strategies

    class CleanupStrategies:
        """The strategies by which expired entries are removed, besides at an access that finds them expired.

        Args:
            strategies: the chosen ones.
            is_cleanup_in_background: whether the state back end's own strategies apply where none was chosen.
        """

        class Strategies(Enum):
            """The strategies."""

            FULL_STATE_SCAN_SNAPSHOT = 0
            INCREMENTAL_CLEANUP = 1
            ROCKSDB_COMPACTION_FILTER = 2

        class CleanupStrategy:
            """One strategy with its settings."""

        class EmptyCleanupStrategy(CleanupStrategy):
            """A strategy without settings."""

        class IncrementalCleanupStrategy(CleanupStrategy):
            """Looks at some entries at every access of the state, or at every record."""

            def __init__(self, cleanup_size: int, run_cleanup_for_every_record: bool) -> None:  # noqa: FBT001  # PyFlink's signature
                if cleanup_size < 0:
                    raise JobGraphError(f"the number of entries to clean up must not be negative, got {cleanup_size}")
                self._cleanup_size = cleanup_size
                self._run_cleanup_for_every_record = run_cleanup_for_every_record

            def get_cleanup_size(self) -> int:
                """How many entries to look at."""
                return self._cleanup_size

            def run_cleanup_for_every_record(self) -> bool:
                """Whether also at records that do not use the state."""
                return self._run_cleanup_for_every_record

        class RocksdbCompactFilterCleanupStrategy(CleanupStrategy):
            """Removes entries when RocksDB compacts its files."""

            def __init__(
                self, query_time_after_num_entries: int, periodic_compaction_time: Length | None = None
            ) -> None:
                self._query_time_after_num_entries = query_time_after_num_entries
                time = Duration.of_days(30) if periodic_compaction_time is None else periodic_compaction_time
                self._periodic_compaction_time = duration_of(time, "the time of periodic compaction", at_least_nanos=0)

            def get_query_time_after_num_entries(self) -> int:
                """After how many entries the clock is asked again."""
                return self._query_time_after_num_entries

            def get_periodic_compaction_time(self) -> Duration:
                """How old a file may become before it is compacted."""
                return self._periodic_compaction_time

        EMPTY_STRATEGY: ClassVar[EmptyCleanupStrategy] = EmptyCleanupStrategy()
        # Flink's: five entries at every access of the state.
        _DEFAULT_INCREMENTAL: ClassVar[IncrementalCleanupStrategy] = IncrementalCleanupStrategy(
            5, run_cleanup_for_every_record=False
        )
        _DEFAULT_ROCKSDB: ClassVar[RocksdbCompactFilterCleanupStrategy] = RocksdbCompactFilterCleanupStrategy(1000)

        def __init__(
            self,
            strategies: "dict[StateTtlConfig.CleanupStrategies.Strategies, "
            "StateTtlConfig.CleanupStrategies.CleanupStrategy]",
            is_cleanup_in_background: bool,  # noqa: FBT001  # PyFlink's signature
        ) -> None:
            self._strategies = dict(strategies)
            self._is_cleanup_in_background = is_cleanup_in_background

        def is_cleanup_in_background(self) -> bool:
            """Whether the strategies of the state backend apply where none was chosen."""
            return self._is_cleanup_in_background

        def in_full_snapshot(self) -> bool:
            """Whether snapshots leave out expired entries."""
            return self.Strategies.FULL_STATE_SCAN_SNAPSHOT in self._strategies

        def get_incremental_cleanup_strategy(
            self,
        ) -> "StateTtlConfig.CleanupStrategies.IncrementalCleanupStrategy | None":
            """The settings for the heap; None: no clean-up in steps."""
            default = self._DEFAULT_INCREMENTAL if self._is_cleanup_in_background else None
            chosen = self._strategies.get(self.Strategies.INCREMENTAL_CLEANUP, default)
            return chosen if isinstance(chosen, self.IncrementalCleanupStrategy) else None

        def get_rocksdb_compact_filter_cleanup_strategy(
            self,
        ) -> "StateTtlConfig.CleanupStrategies.RocksdbCompactFilterCleanupStrategy | None":
            """The settings for RocksDB; None: no clean-up when it compacts."""
            default = self._DEFAULT_ROCKSDB if self._is_cleanup_in_background else None
            chosen = self._strategies.get(self.Strategies.ROCKSDB_COMPACTION_FILTER, default)
            return chosen if isinstance(chosen, self.RocksdbCompactFilterCleanupStrategy) else None

    class Builder:
        """Builds a ``StateTtlConfig``; by default a write makes an entry live on, and an expired
        one is never returned.
        """

        def __init__(self, ttl: Length) -> None:
            self._chosen: dict[str, Any] = {
                "update_type": StateTtlConfig.UpdateType.OnCreateAndWrite,
                "state_visibility": StateTtlConfig.StateVisibility.NeverReturnExpired,
                "ttl_time_characteristic": StateTtlConfig.TtlTimeCharacteristic.ProcessingTime,
                "ttl": _checked_ttl(ttl),
            }
            self._is_cleanup_in_background = True
            self._strategies: dict[
                StateTtlConfig.CleanupStrategies.Strategies, StateTtlConfig.CleanupStrategies.CleanupStrategy
            ] = {}

        def set_update_type(self, update_type: "StateTtlConfig.UpdateType") -> Self:
            """Choose the accesses that make an entry live on."""
            return self._choose(update_type=update_type)

        def update_ttl_on_create_and_write(self) -> Self:
            """Let a write make an entry live on."""
            return self.set_update_type(StateTtlConfig.UpdateType.OnCreateAndWrite)

        def update_ttl_on_read_and_write(self) -> Self:
            """Let a read make an entry live on, too."""
            return self.set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite)

        def set_state_visibility(self, state_visibility: "StateTtlConfig.StateVisibility") -> Self:
            """Choose whether an expired entry is still returned."""
            return self._choose(state_visibility=state_visibility)

        def return_expired_if_not_cleaned_up(self) -> Self:
            """Return an expired entry until it is removed."""
            return self.set_state_visibility(StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp)

        def never_return_expired(self) -> Self:
            """Never return an expired entry."""
            return self.set_state_visibility(StateTtlConfig.StateVisibility.NeverReturnExpired)

        def set_ttl_time_characteristic(self, ttl_time_characteristic: "StateTtlConfig.TtlTimeCharacteristic") -> Self:
            """Choose the clock."""
            return self._choose(ttl_time_characteristic=ttl_time_characteristic)

        def use_processing_time(self) -> Self:
            """Use the clock of the machine."""
            return self.set_ttl_time_characteristic(StateTtlConfig.TtlTimeCharacteristic.ProcessingTime)

        def cleanup_full_snapshot(self) -> Self:
            """Leave expired entries out of snapshots."""
            return self._with("FULL_STATE_SCAN_SNAPSHOT", StateTtlConfig.CleanupStrategies.EMPTY_STRATEGY)

        def cleanup_incrementally(
            self,
            cleanup_size: int,
            run_cleanup_for_every_record: bool,  # noqa: FBT001  # PyFlink's signature
        ) -> Self:
            """Look at ``cleanup_size`` entries at every access of the state, or at every record of the operator."""
            strategies = StateTtlConfig.CleanupStrategies
            chosen = strategies.IncrementalCleanupStrategy(cleanup_size, run_cleanup_for_every_record)
            return self._with("INCREMENTAL_CLEANUP", chosen)

        def cleanup_in_rocksdb_compact_filter(
            self, query_time_after_num_entries: int, periodic_compaction_time: Length | None = None
        ) -> Self:
            """Remove entries when RocksDB compacts its files; has no effect on the heap, as in Flink."""
            strategies = StateTtlConfig.CleanupStrategies
            chosen = strategies.RocksdbCompactFilterCleanupStrategy(
                query_time_after_num_entries, periodic_compaction_time
            )
            return self._with("ROCKSDB_COMPACTION_FILTER", chosen)

        def _with(self, name: str, chosen: "StateTtlConfig.CleanupStrategies.CleanupStrategy") -> Self:
            self._strategies[StateTtlConfig.CleanupStrategies.Strategies[name]] = chosen
            return self

        def disable_cleanup_in_background(self) -> Self:
            """Use only strategies that were chosen here."""
            self._is_cleanup_in_background = False
            return self

        def set_ttl(self, ttl: Length) -> Self:
            """Change how long an entry lives."""
            return self._choose(ttl=_checked_ttl(ttl))

        def build(self) -> "StateTtlConfig":
            """The configuration."""
            cleanup = StateTtlConfig.CleanupStrategies(self._strategies, self._is_cleanup_in_background)
            return StateTtlConfig(**self._chosen, cleanup_strategies=cleanup)

        def _choose(self, **chosen: Any) -> Self:
            self._chosen |= chosen
            return self


def _checked_ttl(ttl: Length) -> Time:
    """The time as a ``Time``.  Raises JobGraphError: it is none, or less than 1 ms."""
    ttl_ms = millis_of(ttl, "a time to live")
    if ttl_ms <= 0:
        raise JobGraphError(f"a time to live is 1 ms or more, such as Time.days(1), got {ttl!r}")
    return Time.milliseconds(ttl_ms)
