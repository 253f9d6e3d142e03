"""Identifies a Spark task to the gate that it pushes into.

Side:       task.  Runs in Spark's Python workers.
Invariants: no two attempts have the same job, epoch, partition and attempt: retries, speculative copies, repeated
            stages, and epochs that are replayed after a restart all differ.  No two writes have the same job and epoch:
            of a partition that is counted nothing more is sent.
Rules:      Spark's ``taskAttemptId`` is unique only within one SparkContext, so the job's name has a part that differs
            from run to run.
Source:     ``pyspark.TaskContext``.  The property of a streaming query is internal to Spark; the tests of
            ``foreachBatch`` and ``writeStream`` check that it is still there.
"""

from typing import Final

from pyspark import TaskContext

from flowlet.ingest.producer import PartitionOffer

_BATCH_ID: Final = "streaming.sql.batchId"
_MAX_ATTEMPT: Final = 2**31


def offer_of_this_task(write_id: str, *, per_stage: bool) -> PartitionOffer:
    """The offer of the current Spark task, with a new nonce; the epoch is the batch of a streaming query, else 0.

    ``per_stage``: the write of each stage is one of its own, because ``write_id`` is used for several.
    """
    context = TaskContext.get()
    if context is None:
        return PartitionOffer(write_id, partition=0)  # called outside of a Spark task
    epoch = int(context.getLocalProperty(_BATCH_ID) or 0)
    job = f"{write_id}/{context.stageId()}" if per_stage else write_id
    # Not attemptNumber(): it starts again at 0 when a stage is repeated.
    return PartitionOffer(
        job, context.partitionId(), context.taskAttemptId() % _MAX_ATTEMPT, epoch, is_retry=context.attemptNumber() > 0
    )
