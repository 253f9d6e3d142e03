"""Moves a file between two processes with the network stack alone: ``python examples/netstack_pipe.py SOURCE COPY``.

The sending process serves a partition.  The receiving process opens a gate on it, and reads at the pace of its disk,
which slows the sender down: each buffer that the receiver recycles is one credit, without credit nothing is sent, and
when all buffers of the partition are full, ``emit_record`` waits.
"""

import multiprocessing
import secrets
import sys
from multiprocessing.connection import Connection
from pathlib import Path

from netstack import (
    ChannelSpec,
    ConnectionID,
    EndOfData,
    ExecutionAttemptID,
    IntermediateResultPartitionID,
    NetstackConfig,
    ResultPartitionID,
    SecurityConfig,
    StandaloneNetwork,
    StopMode,
    wait_consumed,
)

# Both processes name the data by equal ids: 20 bytes for the partition, 40 for the attempt that produces it.
PARTITION = ResultPartitionID(
    IntermediateResultPartitionID(b"the file".ljust(20)), ExecutionAttemptID(b"the sender".ljust(40))
)


def network(secret: bytes) -> StandaloneNetwork:
    """Return the network of one process: 64 MiB of buffers, and an event loop on its own thread.

    Both processes prove that they know the secret.
    """
    return StandaloneNetwork(NetstackConfig(security=SecurityConfig.hmac(secret)))


def send(source: Path, secret: bytes, report: Connection) -> None:
    """Send a file; reports the address to the receiver."""
    with network(secret) as net, source.open("rb") as file:
        report.send(net.serve())  # port 0: the kernel chose a free port, which the receiver must learn
        partition = net.create_partition(PARTITION, num_subpartitions=1)
        try:
            while block := file.read(1024 * 1024):
                partition.emit_record(block, 0)  # fills 32 KiB buffers of subpartition 0; waits if none is free
            partition.notify_end_of_data(StopMode.DRAIN)  # events travel between the buffers, and need no credit
            partition.finish()  # the last event
        finally:
            partition.close()  # an unfinished partition makes the receiver raise ProducerFailedError
        wait_consumed(partition, timeout_s=60)  # until the receiver has read everything


def receive(address: ConnectionID, copy: Path, secret: bytes) -> int:
    """Receive a file; returns its size in bytes."""
    num_bytes = 0
    with network(secret) as net, copy.open("wb") as file:
        gate = net.open_gate([ChannelSpec(PARTITION, subpartition=0, connection=address, initial_credit=4)])
        while (found := gate.get_next()) is not None:  # waits; None at the end
            if found.buffer is not None:
                num_bytes += file.write(found.buffer.view)
                found.buffer.recycle()  # one credit for the sender; the view is invalid from here on
            elif isinstance(found.event, EndOfData):
                print(f"all data received: {num_bytes} bytes")
        gate.close()  # before the end, this would cancel the transfer
    return num_bytes


if __name__ == "__main__":
    shared_secret, processes = secrets.token_bytes(32), multiprocessing.get_context("spawn")
    here, there = processes.Pipe()
    sender = processes.Process(target=send, args=(Path(sys.argv[1]), shared_secret, there))
    sender.start()
    receive(here.recv(), Path(sys.argv[2]), shared_secret)
    sender.join()
    sys.exit(sender.exitcode)
