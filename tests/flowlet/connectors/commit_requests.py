"""A commit request that remembers the last word of its committer."""

from dataclasses import dataclass
from typing import Any

from flowlet.datastream.connectors.base import CommitRequest


@dataclass
class FakeRequest(CommitRequest[Any]):
    """A request whose ``said`` is the last word of the committer; None means "committed"."""

    committable: Any
    retries: int = 0
    said: str | None = None
    error: Exception | None = None

    def get_committable(self) -> Any:
        return self.committable

    def get_number_of_retries(self) -> int:
        return self.retries

    def retry_later(self) -> None:
        self.said = "retry"
        self.retries += 1

    def update_and_retry_later(self, committable: Any) -> None:
        self.committable = committable
        self.retry_later()

    def signal_already_committed(self) -> None:
        self.said = "already"

    def signal_failed_with_known_reason(self, error: Exception) -> None:
        self.said, self.error = "lost", error

    def signal_failed_with_unknown_reason(self, error: Exception) -> None:
        self.said, self.error = "failed", error
