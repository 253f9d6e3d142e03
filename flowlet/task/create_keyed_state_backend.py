"""Chooses the back end of an operator's keyed state.

Side:   task.
Source: Flink ``StateBackendLoader``, ``StateBackend.createKeyedStateBackend``.
"""

import itertools
from collections.abc import Callable
from typing import Final

from flowlet.common.settings.state_settings import StateSettings
from flowlet.state.keyed_state_backend import KeyedStateBackend, SharedFiles
from flowlet.timers.time_api import KeyContext

_num_places: Final = itertools.count()  # of this process; Flink goes from one directory to the next, too


def create_keyed_state_backend(
    settings: StateSettings,
    key_context: KeyContext,
    now_ms: Callable[[], int],
    key_groups: range,
    max_parallelism: int,
    shared_files: SharedFiles | None,
) -> KeyedStateBackend:
    """The back end that the job's settings name; ``shared_files``: of its checkpoints, None: it takes none."""
    if not settings.is_rocksdb:
        from flowlet.state.heap_keyed_state_backend import HeapKeyedStateBackend

        return HeapKeyedStateBackend(key_context, now_ms, key_groups, max_parallelism)
    from flowlet.state.rocksdb.rocksdb_keyed_state_backend import RocksDBKeyedStateBackend, RocksDBPlace

    directory = settings.directories[next(_num_places) % len(settings.directories)] if settings.directories else ""
    place = RocksDBPlace(directory, shared_files, writes_shared_files=settings.is_incremental)
    return RocksDBKeyedStateBackend(key_context, now_ms, key_groups, max_parallelism, place)
