"""``ClientRetry``: how long a client asks for a JobManager that does not answer.

Side:   pure.
Units:  milliseconds.
Source: Flink ``RestOptions`` (``rest.retry.max-attempts``, ``rest.retry.delay``).  There every pause has the whole
        delay; here they grow from 100 ms up to it, so that a JobManager that is back soon is found soon.
"""

from collections.abc import Iterator

from flowlet.common.configuration import Configuration
from flowlet.common.options.known_options import RETRY_ATTEMPTS, RETRY_DELAY
from netstack.late import dataclass

_FIRST_PAUSE_MS = 100


@dataclass(frozen=True, slots=True)
class ClientRetry:
    """A request that gets no answer is tried ``max_attempts`` times more, with pauses of at most ``delay_ms``."""

    max_attempts: int = 20
    delay_ms: int = 3000

    @classmethod
    def of_options(cls, options: Configuration) -> "ClientRetry":
        """What the options say."""
        return cls(RETRY_ATTEMPTS.get(options), RETRY_DELAY.get(options))

    def pauses_s(self) -> Iterator[float]:
        """The pause before each further try, in seconds."""
        pause_ms = min(_FIRST_PAUSE_MS, self.delay_ms)
        for _ in range(self.max_attempts):
            yield pause_ms / 1000
            pause_ms = min(2 * pause_ms, self.delay_ms)
