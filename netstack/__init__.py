"""Flink's network stack on asyncio: credit-based flow control over real TCP.

These names are its API without flowlet; ``examples/netstack_pipe.py`` shows how to use them.  Each process has one
``StandaloneNetwork``.  The producer calls ``serve`` and makes a ``ResultPartition`` under ids that both sides know (20
bytes for the partition, 40 for the attempt that produces it).  The consumer opens a gate with these ids, the producer's
address and an initial credit.  It reads buffers and events at
its own pace: the producer never sends more than the granted credit.
"""

from typing import TYPE_CHECKING

from netstack.late import late_names

if TYPE_CHECKING:
    from netstack.buffer.network_buffer import NetworkBuffer
    from netstack.config import NetstackConfig
    from netstack.environment import ChannelSpec, NetworkEnvironment
    from netstack.errors import (
        BufferOwnershipError,
        ConfigError,
        ConnectError,
        ConnectionLostError,
        InsufficientNetworkBuffersError,
        LocalProtocolError,
        NetstackError,
        PartitionNotFoundError,
        ProducerFailedError,
        RemoteProtocolError,
        ResourceClosedError,
        TransportError,
    )
    from netstack.gate.channels.input_channel import PartitionStateChecker, ProducerState
    from netstack.gate.input_gate import BufferOrEvent, EndOfDataStatus
    from netstack.gate.single_input_gate import SingleInputGate
    from netstack.ids import (
        ConnectionID,
        ExecutionAttemptID,
        IntermediateResultPartitionID,
        ResultPartitionID,
        execution_attempt_id,
        intermediate_partition_id,
    )
    from netstack.loop.eventloop import EventLoopThread
    from netstack.partition.buffer_writing_result_partition import ResultPartitionType
    from netstack.partition.result_partition import ResultPartition
    from netstack.partition.result_partition_manager import ResultPartitionManager
    from netstack.partition.result_subpartition import ConsumerListener, ResultSubpartition
    from netstack.security import SecurityConfig, SecurityMode, TlsConfig
    from netstack.standalone import StandaloneNetwork, wait_consumed
    from netstack.wire.events import EndOfData, EndOfPartition, Event, StopMode

__all__ = [
    "BufferOrEvent",
    "BufferOwnershipError",
    "ChannelSpec",
    "ConfigError",
    "ConnectError",
    "ConnectionID",
    "ConnectionLostError",
    "ConsumerListener",
    "EndOfData",
    "EndOfDataStatus",
    "EndOfPartition",
    "Event",
    "EventLoopThread",
    "ExecutionAttemptID",
    "InsufficientNetworkBuffersError",
    "IntermediateResultPartitionID",
    "LocalProtocolError",
    "NetstackConfig",
    "NetstackError",
    "NetworkBuffer",
    "NetworkEnvironment",
    "PartitionNotFoundError",
    "PartitionStateChecker",
    "ProducerFailedError",
    "ProducerState",
    "RemoteProtocolError",
    "ResourceClosedError",
    "ResultPartition",
    "ResultPartitionID",
    "ResultPartitionManager",
    "ResultPartitionType",
    "ResultSubpartition",
    "SecurityConfig",
    "SecurityMode",
    "SingleInputGate",
    "StandaloneNetwork",
    "StopMode",
    "TlsConfig",
    "TransportError",
    "execution_attempt_id",
    "intermediate_partition_id",
    "wait_consumed",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = late_names(
        __name__,
        {
            "buffer.network_buffer": "NetworkBuffer",
            "config": "NetstackConfig",
            "environment": "ChannelSpec NetworkEnvironment",
            "errors": (
                "BufferOwnershipError ConfigError ConnectError ConnectionLostError InsufficientNetworkBuffersError "
                "LocalProtocolError NetstackError PartitionNotFoundError ProducerFailedError RemoteProtocolError "
                "ResourceClosedError TransportError"
            ),
            "loop.eventloop": "EventLoopThread",
            "gate.channels.input_channel": "PartitionStateChecker ProducerState",
            "gate.input_gate": "BufferOrEvent EndOfDataStatus",
            "gate.single_input_gate": "SingleInputGate",
            "ids": (
                "ConnectionID ExecutionAttemptID IntermediateResultPartitionID ResultPartitionID "
                "execution_attempt_id intermediate_partition_id"
            ),
            "partition.result_partition": "ResultPartition",
            "partition.result_partition_manager": "ResultPartitionManager",
            "partition.buffer_writing_result_partition": "ResultPartitionType",
            "partition.result_subpartition": "ConsumerListener ResultSubpartition",
            "security": "SecurityConfig SecurityMode TlsConfig",
            "standalone": "StandaloneNetwork wait_consumed",
            "wire.events": "EndOfData EndOfPartition Event StopMode",
        },
    )
