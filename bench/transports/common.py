"""The parts that all transports share: the setting, the buffers that are sent, and the proof that they arrived.

Side:  any; one thread at a time.
Proof: every buffer names its channel and its number within the channel, at its head and at its tail; the consumer
       checks both, the order, and every 256th buffer (or every one) byte for byte.  All transports, raw sockets too, do
       equal work for it.
"""

import json
import os
import random
import resource
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Final, Protocol, Self

BUFFER_BYTES: Final = 32 * 1024  # Flink's segment size
_LABEL: Final = struct.Struct(">II")  # channel, number
_TAIL: Final = BUFFER_BYTES - _LABEL.size  # where the second label of a buffer stands
_COMPARE_EVERY: Final = 256
RUN_BUFFERS: Final = 8


@dataclass(frozen=True, slots=True)
class Setting:
    """The work of one run, and how it is done."""

    transport: str
    num_channels: int = 1
    num_credits: int = 8  # per channel; other transports bound their buffers under way by this, where they can
    compare_all: bool = False
    # The network stack: emit records, which are copied into buffers, instead of filling buffers in place.
    is_copied: bool = False
    # Of the sockets; None: for raw ones the kernel's, for the network stack its own choice.
    congestion_control: str | None = None
    switch_interval_ms: float = 0.1
    cpus: tuple[int, int] | None = None  # of producer and consumer; None: wherever the kernel likes
    calls_folder: str | None = None  # count function calls, and write the table there; the network stack only

    def to_json(self) -> str:
        """Return the setting for the command line of a child."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the setting that ``to_json`` wrote."""
        fields = json.loads(text)
        if fields["cpus"] is not None:
            fields["cpus"] = tuple(fields["cpus"])
        return cls(**fields)


class WrongDataError(Exception):
    """Something else arrived than was sent."""


def _body(size_bytes: int) -> bytes:
    return random.Random(1).randbytes(size_bytes - 2 * _LABEL.size)


class PayloadSource:
    """Labels buffers, channel by channel in turns, and counts them."""

    def __init__(self, num_channels: int) -> None:
        self.num_sent = [0] * num_channels
        self._num_channels = num_channels
        self._channel = -1

    @staticmethod
    def new_buffer() -> bytearray:
        """Return a buffer with everything but its labels; it is labelled again for each use."""
        gap = bytes(_LABEL.size)
        return bytearray(gap + _body(BUFFER_BYTES) + gap)

    def label_next(self, buffer: bytearray) -> int:
        """Make ``buffer`` the next one; returns its channel."""
        channel = self._channel + 1
        if channel == self._num_channels:
            channel = 0
        self._channel = channel
        number = self.num_sent[channel]
        self.num_sent[channel] = number + 1
        _LABEL.pack_into(buffer, 0, channel, number)
        _LABEL.pack_into(buffer, BUFFER_BYTES - _LABEL.size, channel, number)
        return channel

    @property
    def buffers_per_turn(self) -> int:
        """How many buffers go to a channel before the next one's turn: with one channel as many as raw sockets send at
        once.
        """
        return RUN_BUFFERS if self._num_channels == 1 else 1

    def next_channel(self) -> int:
        """Return the channel whose turn it is."""
        self._channel = (self._channel + 1) % self._num_channels
        return self._channel

    def label_in_place(self, views: Sequence[memoryview], channel: int) -> None:
        """Make buffers that have everything but their labels the next ones of ``channel``."""
        number = self.num_sent[channel]
        pack_into = _LABEL.pack_into
        for view in views:
            pack_into(view, 0, channel, number)
            pack_into(view, _TAIL, channel, number)
            number += 1
        self.num_sent[channel] = number


class Verifier:
    """Checks what arrives; ``on_first`` is called at the first buffer."""

    def __init__(self, num_channels: int, on_first: Callable[[], None], *, compare_all: bool = False) -> None:
        self.num_received = [0] * num_channels
        self.first_ns = 0
        self.last_ns = 0
        self._on_first = on_first
        self._every = 1 if compare_all else _COMPARE_EVERY
        self._expected = _body(BUFFER_BYTES)

    def check(self, view: memoryview) -> None:
        """Check one buffer.

        Raises:
            WrongDataError: it is not the next one of its channel, or not whole.
        """
        if len(view) != BUFFER_BYTES:
            raise WrongDataError(f"a buffer of {len(view)} bytes instead of {BUFFER_BYTES}")
        label = channel, number = _LABEL.unpack_from(view)
        if label != _LABEL.unpack_from(view, BUFFER_BYTES - _LABEL.size):
            raise WrongDataError(f"a buffer begins as number {number} of channel {channel} and ends as another one")
        if number != self.num_received[channel]:
            raise WrongDataError(
                f"channel {channel}: buffer {number} arrived, {self.num_received[channel]} was to come"
            )
        self.num_received[channel] = number + 1
        if not number % self._every and bytes(view[_LABEL.size : -_LABEL.size]) != self._expected:
            raise WrongDataError(f"channel {channel}: buffer {number} has other bytes than were sent")
        if not self.first_ns:
            self.first_ns = time.monotonic_ns()
            self._on_first()

    def finish(self) -> None:
        """Note the time: everything has arrived."""
        self.last_ns = time.monotonic_ns()

    @property
    def seconds(self) -> float:
        """The time from the first buffer to the end."""
        return (self.last_ns - self.first_ns) / 1e9


class Stop:
    """Set when the parent closes our standard input, or ends."""

    def __init__(self) -> None:
        self.is_set = False

    @classmethod
    def at_end_of_input(cls) -> Self:
        """Watch standard input on a daemon thread."""
        stop = cls()
        threading.Thread(target=stop._watch, name="stop", daemon=True).start()
        return stop

    def _watch(self) -> None:
        while os.read(0, 64):
            pass
        self.is_set = True


class Transport(Protocol):
    """The two functions that each module of this package has."""

    def produce(self, setting: Setting, source: PayloadSource, stop: Stop, listening: Callable[[int], None]) -> None:
        """Listen, say where, send until ``stop``, and return once the consumer has everything."""

    def consume(self, setting: Setting, port: int, verifier: Verifier) -> None:
        """Connect, and read to the end."""


@dataclass(frozen=True, slots=True)
class CpuUse:
    """CPU seconds and context switches of this process, all threads."""

    user_s: float
    system_s: float
    num_switches: int = 0

    @classmethod
    def now(cls) -> Self:
        """Return the use of this process so far."""
        use = resource.getrusage(resource.RUSAGE_SELF)
        return cls(use.ru_utime, use.ru_stime, use.ru_nvcsw + use.ru_nivcsw)

    def since(self, before: "CpuUse") -> dict[str, float]:
        """Return the difference, for a report."""
        return {
            "user_s": self.user_s - before.user_s,
            "system_s": self.system_s - before.system_s,
            "num_switches": self.num_switches - before.num_switches,
        }
