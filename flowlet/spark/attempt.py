"""Identifies a Spark task to the gate that it pushes into.

Side:       task.  Runs in Spark's Python workers.
Invariants: no two attempts have the same job, epoch, partition and attempt: retries, speculative copies, repeated stages, and epochs that
            are replayed after a restart all differ.
Rules:      Spark's ``taskAttemptId`` is unique only within one SparkContext, so the job's name has a part that differs from run to run.
Source:     ``pyspark.TaskContext``.  The properties of a streaming query are internal to Spark; the tests of ``foreachBatch`` and
            ``writeStream`` check that they are still there.
"""

from typing import Final

from pyspark import TaskContext

from flowlet.ingest.producer import PartitionOffer

_BATCH_ID: Final = "streaming.sql.batchId"
_QUERY_ID: Final = "sql.streaming.queryId"
_RUN_ID: Final = "spark.jobGroup.id"  # a streaming query sets it to the id of its run
_MAX_ATTEMPT: Final = 2**31


def offer_of_this_task(write_id: str) -> PartitionOffer:
    """The offer of the current Spark task, with a new nonce; ``write_id`` tells batch writes apart."""
    context = TaskContext.get()
    if context is None:
        return PartitionOffer(write_id, partition=0)  # called outside of a Spark task
    query_id, batch_id = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
    partition, attempt = context.partitionId(), context.taskAttemptId() % _MAX_ATTEMPT
    if query_id is None or batch_id is None:
        return PartitionOffer(f"{write_id}/{context.stageId()}", partition, attempt)
    run_id = context.getLocalProperty(_RUN_ID) or write_id
    return PartitionOffer(f"{query_id}/{run_id}", partition, attempt, epoch=int(batch_id))
