"""A producer in a process of its own: pushes to the gate ``clicks`` for ever, or forks."""

import gc
import multiprocessing
import os
import subprocess
import sys
import warnings
from typing import TYPE_CHECKING, Any, Final

from flowlet.ingest import GateLostError, PartitionOffer, open_gate
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from tests.flowlet.ingest.conftest import GateCluster

CHUNK: Final = list(range(1000))


def producer_process(cluster: "GateCluster", what: str, **options: Any) -> "subprocess.Popen[str]":
    """Start one; for tests."""
    command = [
        sys.executable,
        "-m",
        "tests.flowlet.ingest.producer_process",
        what,
        cluster.address,
        str(cluster.secret_file),
    ]
    return subprocess.Popen(command, **options)


def forked() -> int:
    """``os.fork``, of which Python 3.12 and later warn while there are threads: users do it, so their connections must
    survive it.
    """
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        return os.fork()


def push_for_ever(jobmanager: str, secret_file: str) -> None:
    gate = open_gate("clicks", jobmanager=jobmanager, secret_file=secret_file, timeout_s=PATIENCE_S)
    with gate.open_partition(PartitionOffer("doomed", 0)) as writer:
        writer.write_records(list(CHUNK))
        print("pushing", flush=True)
        while True:
            writer.write_records(list(CHUNK))


def fork_and_push(jobmanager: str, secret_file: str) -> None:
    """The parent has connections and a loop thread when the child is made."""
    push_one(jobmanager, secret_file, 0)
    child = forked()
    if not child:
        push_one(jobmanager, secret_file, 1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    push_one(jobmanager, secret_file, 2)
    sys.exit(os.waitstatus_to_exitcode(status))


def fork_and_wait(jobmanager: str, secret_file: str) -> None:
    """A child that ends with the standard input lives on when this process is killed."""
    gate = open_gate("clicks", jobmanager=jobmanager, secret_file=secret_file, timeout_s=PATIENCE_S)
    with gate.open_partition(PartitionOffer("doomed", 0)) as writer:
        writer.write_records(list(CHUNK))
        stdin = os.dup(0)  # children close it
        child = multiprocessing.get_context("fork").Process(target=_tell_and_wait, args=(stdin,), daemon=True)
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            child.start()
        while True:
            writer.write_records(list(CHUNK))


def _tell_and_wait(stdin: int) -> None:
    print(os.getpid(), flush=True)
    os.read(stdin, 1)


def fork_within(jobmanager: str, secret_file: str) -> None:
    """Children that collect garbage, and want to use the writer."""
    gate = open_gate("clicks", jobmanager=jobmanager, secret_file=secret_file, timeout_s=PATIENCE_S)
    with gate.open_partition(PartitionOffer("forked", 0)) as writer:
        for _ in range(2):
            writer.write_records([1])
            child = forked()
            if not child:
                gc.collect()
                try:
                    writer.write_records([2])
                except GateLostError as error:
                    print(error, flush=True)
                os._exit(0)
            _, status = os.waitpid(child, 0)
            assert not status
        writer.write_records([3])
        writer.finish(PATIENCE_S)


def push_one(jobmanager: str, secret_file: str, partition: int) -> None:
    gate = open_gate("clicks", jobmanager=jobmanager, secret_file=secret_file, timeout_s=PATIENCE_S)
    with gate.open_partition(PartitionOffer("forked", partition)) as writer:
        writer.write_records([partition])
        writer.finish(PATIENCE_S)


if __name__ == "__main__":
    {"for-ever": push_for_ever, "fork": fork_and_push, "fork-and-wait": fork_and_wait, "fork-within": fork_within}[
        sys.argv[1]
    ](*sys.argv[2:])
