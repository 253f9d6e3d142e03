"""A producer in a process of its own: pushes to the gate ``clicks`` for ever, or forks and lets its child push as well."""

import os
import sys
from typing import Final

from flowlet.ingest import PartitionOffer, open_gate

CHUNK: Final = list(range(1000))


def push_for_ever(jobmanager: str, secret_file: str) -> None:
    gate = open_gate("clicks", jobmanager=jobmanager, secret_file=secret_file)
    with gate.open_partition(PartitionOffer("doomed", 0)) as writer:
        writer.write_records(list(CHUNK))
        print("pushing", flush=True)
        while True:
            writer.write_records(list(CHUNK))


def fork_and_push(jobmanager: str, secret_file: str) -> None:
    """The parent has connections and a loop thread when the child is made."""
    push_one(jobmanager, secret_file, 0)
    child = os.fork()
    if not child:
        push_one(jobmanager, secret_file, 1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    push_one(jobmanager, secret_file, 2)
    sys.exit(os.waitstatus_to_exitcode(status))


def push_one(jobmanager: str, secret_file: str, partition: int) -> None:
    gate = open_gate("clicks", jobmanager=jobmanager, secret_file=secret_file)
    with gate.open_partition(PartitionOffer("forked", partition)) as writer:
        writer.write_records([partition])
        writer.finish(20.0)


if __name__ == "__main__":
    {"for-ever": push_for_ever, "fork": fork_and_push}[sys.argv[1]](*sys.argv[2:])
