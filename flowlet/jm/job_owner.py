"""``JobOwner``: what a ``JobMaster`` needs of the dispatcher.

Side:   loop.
Source: Flink ``SlotPool``, ``JobManagerRunner`` as a ``JobMaster`` sees them.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from flowlet.jm.job_master import JobMaster


class JobOwner(Protocol):
    """Has the slots.  No method may end a job before it returns.

    One implementer: ``Dispatcher`` imports this module, which therefore cannot import it.
    """

    def request_slots(self, master: "JobMaster") -> None:
        """The job waits for its slots: call ``start`` or ``fail_scheduling``, at once or later, unless the job ends
        before.
        """

    def release_slots(self, master: "JobMaster") -> None:
        """No task of the job runs any more; the job asks for its slots again, or it ends."""

    def job_ended(self, master: "JobMaster", clean_up: Callable[[], None]) -> None:
        """The job has ended, and its slots are free; called once.

        ``clean_up`` removes what a restart would need: it is to be called.
        """

    def checkpoint_completed(self, master: "JobMaster") -> None:
        """``last_completed_checkpoint_id`` has changed."""

    def may_trigger(self, master: "JobMaster", checkpoint_id: int) -> bool:
        """Whether a checkpoint may have this id: no later JobManager will use it again."""
