"""What makes the records of a sink count: ``Committer``.

Side:   pure.  Committers are made on the thread of their task, which makes all calls.
Source: Flink ``Committer``, ``Committer.CommitRequest``, which PyFlink lacks, with names in the style of Python.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

__all__ = ["CommitRequest", "Committer"]

CommittableT = TypeVar("CommittableT")


class CommitRequest(ABC, Generic[CommittableT]):
    """One committable; unless one of its methods is called, it is committed when ``Committer.commit`` returns."""

    @abstractmethod
    def get_committable(self) -> CommittableT:
        """What the writer prepared."""

    @abstractmethod
    def get_number_of_retries(self) -> int:
        """How often it was tried before."""

    @abstractmethod
    def retry_later(self) -> None:
        """Try it again after a pause: the failure will pass."""

    @abstractmethod
    def update_and_retry_later(self, committable: CommittableT) -> None:
        """Try this one instead after a pause."""

    @abstractmethod
    def signal_already_committed(self) -> None:
        """It was committed before the restart; that is no failure."""

    @abstractmethod
    def signal_failed_with_known_reason(self, error: Exception) -> None:
        """It can never be committed, and its records are lost: logged as an error and counted."""

    @abstractmethod
    def signal_failed_with_unknown_reason(self, error: Exception) -> None:
        """It failed: the job fails, and commits it again after the restart."""


class Committer(ABC, Generic[CommittableT]):
    """Commits what writers prepared, once the checkpoint that holds it is complete.

    After a restart committables come again that may be committed already: ``commit`` must be idempotent.  An exception
    is an unknown failure of all requests.
    """

    @abstractmethod
    def commit(self, requests: Sequence[CommitRequest[Any]]) -> None:
        """Commit, in the order of the requests."""

    def close(self) -> None:  # nothing to do unless overridden
        """Release what the committer holds; also called after a failure."""
