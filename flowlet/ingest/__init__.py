"""The producer's side of remote gates: push partitions into a running job from any process."""

from flowlet.ingest.description import (
    AttemptRefusedError,
    GateAccessError,
    GateDescription,
    GateEndedError,
    GateEndpoint,
    GateError,
    GateLostError,
    GateNotFoundError,
    GateTypeError,
    GateUnreachableError,
    GateWriteError,
    PartitionOffer,
)
from flowlet.ingest.partition_writer import PartitionWriter
from flowlet.ingest.producer import GateClient, finish_gate, open_gate
from flowlet.ingest.runtime import close_producers

__all__ = [
    "AttemptRefusedError",
    "GateAccessError",
    "GateClient",
    "GateDescription",
    "GateEndedError",
    "GateEndpoint",
    "GateError",
    "GateLostError",
    "GateNotFoundError",
    "GateTypeError",
    "GateUnreachableError",
    "GateWriteError",
    "PartitionOffer",
    "PartitionWriter",
    "close_producers",
    "finish_gate",
    "open_gate",
]
