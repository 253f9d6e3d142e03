"""What a checkpoint holds of keyed state in RocksDB, if it shares files with other checkpoints.

Side:       pure.
Invariants: nobody changes a snapshot, or a file that it names.
Source:     Flink ``IncrementalRemoteKeyedStateHandle``.
"""

from collections.abc import Mapping

from flowlet.state.keyed_state_snapshot import StateDescription
from netstack.late import dataclass

INCREMENTAL_VERSION = 1


@dataclass(frozen=True, slots=True)
class SharedFile:
    """A file below the job's directory of shared files, where its SHA-256 is its name."""

    sha256: bytes
    num_bytes: int


@dataclass(frozen=True, slots=True)
class IncrementalSnapshot:
    """All keyed state of one operator; whoever changes a field, or the form of a row, raises ``version``.

    Args:
        descriptions: by name of the state.
        state_ids: by name of the state, the number that its rows begin with.
        max_parallelism: the number of key groups.
        first_key_group: of the subtask.
        end_key_group: the one after its last.
        shared: by name within the database, files that other checkpoints have, too.
        private: by name within the database, the content of its other files.
        version: of this format.
    """

    descriptions: Mapping[str, StateDescription]
    state_ids: Mapping[str, int]
    max_parallelism: int
    first_key_group: int
    end_key_group: int
    shared: Mapping[str, SharedFile]
    private: Mapping[str, bytes]
    version: int = INCREMENTAL_VERSION
