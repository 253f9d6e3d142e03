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
    from netstack.buffer.network_buffer import NetworkBuffer as NetworkBuffer
    from netstack.config import NetstackConfig as NetstackConfig
    from netstack.environment import ChannelSpec as ChannelSpec
    from netstack.environment import NetworkEnvironment as NetworkEnvironment
    from netstack.errors import BufferOwnershipError as BufferOwnershipError
    from netstack.errors import ConfigError as ConfigError
    from netstack.errors import ConnectError as ConnectError
    from netstack.errors import ConnectionLostError as ConnectionLostError
    from netstack.errors import InsufficientNetworkBuffersError as InsufficientNetworkBuffersError
    from netstack.errors import LocalProtocolError as LocalProtocolError
    from netstack.errors import NetstackError as NetstackError
    from netstack.errors import PartitionNotFoundError as PartitionNotFoundError
    from netstack.errors import ProducerFailedError as ProducerFailedError
    from netstack.errors import RemoteProtocolError as RemoteProtocolError
    from netstack.errors import ResourceClosedError as ResourceClosedError
    from netstack.errors import TransportError as TransportError
    from netstack.gate.channels.input_channel import PartitionStateChecker as PartitionStateChecker
    from netstack.gate.channels.input_channel import ProducerState as ProducerState
    from netstack.gate.gate_channels import BufferOrEvent as BufferOrEvent
    from netstack.gate.gate_channels import EndOfDataStatus as EndOfDataStatus
    from netstack.gate.single_input_gate import SingleInputGate as SingleInputGate
    from netstack.ids import ConnectionID as ConnectionID
    from netstack.ids import ExecutionAttemptID as ExecutionAttemptID
    from netstack.ids import IntermediateResultPartitionID as IntermediateResultPartitionID
    from netstack.ids import ResultPartitionID as ResultPartitionID
    from netstack.ids import execution_attempt_id as execution_attempt_id
    from netstack.ids import intermediate_partition_id as intermediate_partition_id
    from netstack.loop.eventloop import EventLoopThread as EventLoopThread
    from netstack.partition.buffer_writing_result_partition import ResultPartitionType as ResultPartitionType
    from netstack.partition.result_partition import ResultPartition as ResultPartition
    from netstack.partition.result_partition_manager import ResultPartitionManager as ResultPartitionManager
    from netstack.partition.result_subpartition import ConsumerListener as ConsumerListener
    from netstack.partition.result_subpartition import ResultSubpartition as ResultSubpartition
    from netstack.security import SecurityConfig as SecurityConfig
    from netstack.security import SecurityMode as SecurityMode
    from netstack.security import TlsConfig as TlsConfig
    from netstack.standalone import StandaloneNetwork as StandaloneNetwork
    from netstack.standalone import wait_consumed as wait_consumed
    from netstack.wire.events import EndOfData as EndOfData
    from netstack.wire.events import EndOfPartition as EndOfPartition
    from netstack.wire.events import Event as Event
    from netstack.wire.events import StopMode as StopMode

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = late_names(
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
            "gate.gate_channels": "BufferOrEvent EndOfDataStatus",
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
