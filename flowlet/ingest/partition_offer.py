"""``PartitionOffer``: how a producer names what it pushes.

Side: pure.
"""

import uuid
from dataclasses import field

from netstack.late import dataclass


@dataclass(frozen=True, slots=True)
class PartitionOffer:
    """Identifies one attempt to push one partition.

    ``job`` names the producer's job, run or query.  (job, epoch) is one write: a gate with ``producers=N`` ends when
    one write has N partitions.  A gate accepts each (job, epoch, partition, attempt) once, unless it was aborted: a
    retry needs a new ``attempt``, and a new run a new ``job``.  ``nonce`` is new for every offer.  ``num_producers``:
    how many partitions the write has in all, if it is known.
    ``is_retry``: the partition may be counted already; None: it may if ``attempt`` is above 0.
    """

    job: str
    partition: int
    attempt: int = 0
    epoch: int = 0
    nonce: uuid.UUID = field(default_factory=uuid.uuid4)
    num_producers: int | None = None
    is_retry: bool | None = None

    @property
    def may_be_counted(self) -> bool:
        """Whether an earlier attempt may have been complete."""
        return self.attempt > 0 if self.is_retry is None else self.is_retry

    def __str__(self) -> str:
        return f"partition {self.partition} (attempt {self.attempt}, epoch {self.epoch}) of {self.job!r}"
