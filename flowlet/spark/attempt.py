"""Identifies a Spark task to the gate that it pushes into.

Side:       task.  Runs in Spark's Python workers.
Invariants: no two attempts have the same job, epoch, partition and attempt: retries, speculative copies, repeated stages, and epochs that
            are replayed after a restart all differ.
Rules:      Spark's ``taskAttemptId`` is unique only within one SparkContext, so the job's name has a part that differs from run to run.
Source:     ``pyspark.TaskContext``.  The properties of a streaming query are internal to Spark; the tests of ``foreachBatch`` and
            ``writeStream`` check that they are still there.
"""

from dataclasses import dataclass
from typing import Final

from pyspark import TaskContext

from flowlet.ingest.producer import PartitionOffer

_BATCH_ID: Final = "streaming.sql.batchId"
_QUERY_ID: Final = "sql.streaming.queryId"
_RUN_ID: Final = "spark.jobGroup.id"  # a streaming query sets it to the id of its run
_MAX_ATTEMPT: Final = 2**31


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt to push one partition.  ``job``: the write, or the query and its run.  ``epoch``: the micro-batch; 0 for a batch."""

    job: str
    epoch: int
    partition: int
    attempt: int

    def offer(self) -> PartitionOffer:
        """What the gate is offered, with a new nonce."""
        return PartitionOffer(job=self.job, partition=self.partition, attempt=self.attempt, epoch=self.epoch)


def attempt_of_this_task(write_id: str) -> Attempt:
    """The attempt of the current Spark task; ``write_id`` tells batch writes apart."""
    context = TaskContext.get()
    if context is None:
        return Attempt(write_id, 0, 0, 0)  # called outside of a Spark task
    query_id, batch_id = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
    attempt = context.taskAttemptId() % _MAX_ATTEMPT
    if query_id is None or batch_id is None:
        return Attempt(f"{write_id}/{context.stageId()}", 0, context.partitionId(), attempt)
    run_id = context.getLocalProperty(_RUN_ID) or write_id
    return Attempt(f"{query_id}/{run_id}", int(batch_id), context.partitionId(), attempt)
