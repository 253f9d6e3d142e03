"""How long a consumer waits before it asks once more for a partition that was not found.

Side:       pure.
Units:      milliseconds.
Source:     Flink ``InputChannel.increaseBackoff``, and ``RemoteInputChannel.increaseBackoff`` for producers that keep a
            request for a while before they say that they do not know the partition (1.18 and later).
"""


class RequestBackoff:
    """Doubles from ``initial_ms`` to ``max_ms``, then there is no further attempt; 0 means that there is none at all.

    With a ``listener_timeout_ms`` the producer has waited that long already: the next request goes out at once, and the
    time that is spent this way only counts, until it reaches twice ``max_ms``.
    """

    __slots__ = ("_current_ms", "_initial_ms", "_listener_timeout_ms", "_max_ms")

    def __init__(self, initial_ms: int = 0, max_ms: int = 0, *, listener_timeout_ms: int = 0) -> None:
        if not 0 <= initial_ms <= max_ms:
            raise ValueError(f"a back-off from {initial_ms} to {max_ms} ms")
        self._initial_ms = initial_ms
        self._max_ms = max_ms
        self._listener_timeout_ms = listener_timeout_ms
        self._current_ms = 0

    def __repr__(self) -> str:
        return f"<RequestBackoff at {self._current_ms} of {self._max_ms} ms>"

    @property
    def current_ms(self) -> int:
        """How far it has grown."""
        return self._current_ms

    @property
    def is_counting_only(self) -> bool:
        """Whether it is the producer's side that waits."""
        return self._listener_timeout_ms > 0

    def next_delay_ms(self) -> int | None:
        """How long to wait before the next request; None if there shall be none."""
        if self._listener_timeout_ms:
            self._current_ms += self._listener_timeout_ms
            return 0 if self._current_ms < 2 * self._max_ms else None
        if self._initial_ms == 0 or self._current_ms == self._max_ms:
            return None
        self._current_ms = min(2 * self._current_ms, self._max_ms) if self._current_ms else self._initial_ms
        return self._current_ms
