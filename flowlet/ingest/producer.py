"""Pushes partitions into a remote gate of a running job, from any process outside the cluster.

Side:       shared.  Calls block the thread that has the data.
Promises:   docs/remote-gates.md; ``PartitionWriter``.
"""

from pathlib import Path

from flowlet.ingest.description import GateDescription, PartitionOffer
from flowlet.ingest.partition_writer import DEFAULT_LIMITS, PartitionWriter, PushLimits
from flowlet.ingest.runtime import producer_runtime


def open_gate(
    gate: str,
    *,
    jobmanager: str,
    timeout_s: float = DEFAULT_LIMITS.timeout_s,
    secret_file: str | Path | None = None,
    wait_for_gate_s: float = 0.0,
    wait_for_room_s: float = DEFAULT_LIMITS.wait_for_room_s,
    committed_job: str | None = None,
    resume_timeout_s: float = DEFAULT_LIMITS.resume_timeout_s,
    max_kept_bytes: int = DEFAULT_LIMITS.max_kept_bytes,
) -> "GateClient":
    """Look up a remote gate.

    Args:
        gate: the name given to ``env.from_remote_gate``.
        jobmanager: host:port.
        timeout_s: of the look-up, and of each offer.
        secret_file: of the cluster; None: ``$FLOWLET_SECRET_FILE``, else ``~/.flowlet/secret``.
        wait_for_gate_s: how long to ask again if there is no JobManager yet, or no running job with this gate.
        wait_for_room_s: as for ``GateClient``.
        committed_job: the writes of this ``PartitionOffer.job`` count only once they are committed
            (``GateClient.commit``).
        resume_timeout_s: as for ``GateClient``.
        max_kept_bytes: as for ``GateClient``.

    Raises:
        GateNotFoundError: no job has it, or its tasks did not run within ``timeout_s``.
        GateEndedError: its job has ended.
        GateAccessError: the secret is not the JobManager's.
        GateUnreachableError: no JobManager answers there.
    """
    # Here, because a process with a description may need no HTTP client.
    from flowlet.ingest.lookup import await_gate, secret_of

    asked = await_gate(gate, jobmanager, timeout_s, secret_of(secret_file), wait_for_gate_s, committed_job)
    return GateClient(
        producer_runtime().run(asked),
        timeout_s=timeout_s,
        wait_for_room_s=wait_for_room_s,
        resume_timeout_s=resume_timeout_s,
        max_kept_bytes=max_kept_bytes,
    )


def finish_gate(
    gate: str, *, jobmanager: str, timeout_s: float = DEFAULT_LIMITS.timeout_s, secret_file: str | Path | None = None
) -> None:
    """Tell ``gate`` to accept no more partitions, and to end after the open ones.  Returns without waiting for the end.

    Raises:
        GateNotFoundError, GateEndedError, GateAccessError, GateUnreachableError: as ``open_gate``.
    """
    from flowlet.ingest.lookup import request_finish, secret_of  # as in ``open_gate``

    producer_runtime().run(request_finish(gate, jobmanager, timeout_s, secret_of(secret_file)))


class GateClient:
    """One gate, for the partitions of this process.  Threading: any thread.

    With a ``GateDescription`` from elsewhere it needs no secret, and asks the JobManager only about failures, retries
    and commits.

    Args:
        description: of the gate.
        timeout_s: of each offer and each question.
        wait_for_room_s: how long an offer waits while the gate has as many producers as it may have, or no memory for
            another one.
        resume_timeout_s: how long a call tries to go on when the gate was lost, because a TaskManager or the JobManager
            ended.  Only if the gate's job takes checkpoints; without them the call fails at once.
        max_kept_bytes: about how many bytes of a partition that no checkpoint holds are kept to be sent again; then
            calls wait for a checkpoint.  One call may bring more.
    """

    def __init__(
        self,
        description: GateDescription,
        *,
        timeout_s: float = DEFAULT_LIMITS.timeout_s,
        wait_for_room_s: float = DEFAULT_LIMITS.wait_for_room_s,
        resume_timeout_s: float = DEFAULT_LIMITS.resume_timeout_s,
        max_kept_bytes: int = DEFAULT_LIMITS.max_kept_bytes,
    ) -> None:
        self.description = description
        self._limits = PushLimits(timeout_s, wait_for_room_s, resume_timeout_s, max_kept_bytes)

    def __repr__(self) -> str:
        return f"<GateClient of {self.description}>"

    def open_partition(self, offer: PartitionOffer) -> "PartitionWriter":
        """Offer a partition to every subtask of the gate; returns when all have accepted, or the partition is counted
        already.

        Raises:
            AttemptRefusedError: the gate has seen this attempt before, or had no room for another producer within
                ``wait_for_room_s``.
            GateEndedError: it accepts no more partitions.
            GateTypeError: its type has changed since the description was made.
            GateAccessError: the token is wrong or has expired.
            GateUnreachableError: a TaskManager cannot be reached.
            GateLostError: a TaskManager did not answer in time, or the connection was lost.
        """
        return PartitionWriter(producer_runtime(), self.description, offer, self._limits)

    def commit(self, job: str, num_partitions: int, epoch: int = 0) -> None:
        """Commit a write: it is complete with so many partitions.  May be repeated.

        If the writes of the gate's job wait for checkpoints, this call does, too, for ``resume_timeout_s``.

        Raises:
            GateWriteError: the write was aborted, or the gate waits for another number of partitions.
            GateEndedError: the gate's job has failed or was cancelled, so the records are lost; says why.
            GateError: the JobManager does not answer, has forgotten the job, or does not accept the token.
        """
        self._end_write(job, epoch, num_partitions)

    def abort_write(self, job: str, epoch: int = 0) -> None:
        """Abort a write, unless it is committed: its partitions do not count, and its records stay processed.

        Raises GateError: as ``commit``.
        """
        self._end_write(job, epoch, None)

    def _end_write(self, job: str, epoch: int, num_partitions: int | None) -> None:
        from flowlet.ingest.lookup import end_write  # as in ``open_gate``

        limits = self._limits
        patience_s = limits.resume_timeout_s if self.description.has_checkpoints else 0.0
        producer_runtime().run(end_write(self.description, job, epoch, num_partitions, limits.timeout_s, patience_s))
