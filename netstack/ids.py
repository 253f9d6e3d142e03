"""Identifiers of the wire protocol, in exactly the bytes that travel.

Side:   pure.
Units:  a channel (receiver) id is 16 bytes, an intermediate result partition id 20 (16 + i32), an execution attempt id
        40 (graph 16 + vertex 16 + i32 subtask + i32 attempt); all integers big endian.
Source: Flink ``InputChannelID``, ``IntermediateResultPartitionID``, ``ExecutionAttemptID``, ``ConnectionID``.
"""

import os
import struct
from typing import NewType

from netstack.late import dataclass

InputChannelID = NewType("InputChannelID", bytes)
IntermediateResultPartitionID = NewType("IntermediateResultPartitionID", bytes)
ExecutionAttemptID = NewType("ExecutionAttemptID", bytes)

INPUT_CHANNEL_ID_BYTES = 16


def input_channel_id(lower: int, upper: int) -> InputChannelID:
    """Make the id whose wire form is the two signed 64-bit halves, lower part first."""
    return InputChannelID(struct.pack(">qq", lower, upper))


def new_input_channel_id() -> InputChannelID:
    """Make a random id."""
    return InputChannelID(os.urandom(INPUT_CHANNEL_ID_BYTES))


def intermediate_partition_id(data_set: bytes, partition: int) -> IntermediateResultPartitionID:
    """Make the id of one partition of the intermediate data set with the given 16-byte id."""
    if len(data_set) != 16:
        raise ValueError(f"a data set id has 16 bytes, got {len(data_set)}")
    return IntermediateResultPartitionID(data_set + struct.pack(">i", partition))


def execution_attempt_id(graph: bytes, vertex: bytes, subtask: int, attempt: int) -> ExecutionAttemptID:
    """Make the id of one attempt to run one subtask; ``graph`` and ``vertex`` have 16 bytes each."""
    if len(graph) != 16 or len(vertex) != 16:
        raise ValueError(f"graph and vertex ids have 16 bytes, got {len(graph)} and {len(vertex)}")
    return ExecutionAttemptID(graph + vertex + struct.pack(">ii", subtask, attempt))


def subtask_of(attempt: bytes) -> tuple[str, int]:
    """Return the vertex, as 32 hex digits, and the subtask that an attempt runs."""
    (subtask,) = struct.unpack(">i", attempt[32:36])
    return attempt[16:32].hex(), subtask


@dataclass(frozen=True, slots=True)
class ResultPartitionID:
    """One partition as produced by one attempt: a restarted producer makes another one."""

    partition: IntermediateResultPartitionID
    producer: ExecutionAttemptID

    def __str__(self) -> str:
        subtask, attempt = struct.unpack(">ii", self.producer[32:])
        return (
            f"{self.partition[:4].hex()}#{int.from_bytes(self.partition[16:], 'big')}@subtask {subtask} attempt "
            f"{attempt}"
        )


@dataclass(frozen=True, slots=True)
class ConnectionID:
    """The address of a TaskManager's data port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"
