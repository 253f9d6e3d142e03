"""The producer's side of remote gates: push partitions into a running job from any process."""

from flowlet.ingest.producer import (
    AttemptRefusedError,
    GateAccessError,
    GateClient,
    GateDescription,
    GateEndedError,
    GateEndpoint,
    GateError,
    GateLostError,
    GateNotFoundError,
    GateTypeError,
    GateUnreachableError,
    PartitionOffer,
    PartitionWriter,
    close_producers,
    finish_gate,
    open_gate,
)

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
    "PartitionOffer",
    "PartitionWriter",
    "close_producers",
    "finish_gate",
    "open_gate",
]
