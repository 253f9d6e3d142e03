"""What a task sees of its input, whether it is one gate or several.

Side:   shared.
Units:  sizes in bytes, timeouts in seconds.
Source: Flink ``InputGate``, ``PullingAsyncDataInput.EndOfDataStatus``.
"""

import threading
from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol

from netstack.availability import AvailabilityFuture
from netstack.gate.buffer_or_event import BufferOrEvent
from netstack.wire.events import Event


class EndOfDataStatus(Enum):
    """What the ends of data seen so far ask for."""

    NOT_END_OF_DATA = auto()
    DRAINED = auto()
    """Every channel ended its data, and all want windows and timers fired."""
    STOPPED = auto()
    """Every channel ended its data, at least one without draining."""


class InputGate(Protocol):
    """What a task does with its input, whether it is one gate or several."""

    @property
    def num_channels(self) -> int:
        """How many channels it has; they are told apart by their index."""

    @property
    def is_finished(self) -> bool:
        """Whether every channel reached the end of its partition."""

    @property
    def end_of_data_status(self) -> EndOfDataStatus:
        """Whether every channel reached the end of its data, and how."""

    def available_future(self) -> AvailabilityFuture:
        """Done if a poll may find something, or the gate is finished or closed."""

    def priority_event_available_future(self) -> AvailabilityFuture:
        """Done while a priority event can be polled."""

    def poll_next(self) -> BufferOrEvent | None:
        """The next buffer or event, or None; never blocks."""

    def get_next(self, timeout_s: float | None = None) -> BufferOrEvent | None:
        """The next buffer or event; blocks.  None at the end; raises TimeoutError after ``timeout_s``."""

    def request_partitions(self) -> None:
        """Ask for the data."""

    def resume_consumption(self, channel_index: int) -> None:
        """Let the producer behind a channel go on after a blocking event."""

    def acknowledge_all_records_processed(self, channel_index: int) -> None:
        """Tell the producer behind a channel that everything up to its end of data was processed."""

    def send_task_event(self, event: Event) -> None:
        """Bring ``event`` to all producers."""

    def close(self) -> None:
        """Release every channel and wake whoever waits."""


class BatchInputGate(InputGate, Protocol):
    """A gate that yields several buffers at once."""

    def poll_many(self, max_items: int) -> list[BufferOrEvent]:
        """What so many ``poll_next`` would find at most, but an event comes alone; never blocks."""

    def poll_data(self, max_buffers: int) -> list[BufferOrEvent]:
        """``poll_many``, but nothing if an event, or an error, is next; never blocks."""


def wait_for_next(gate: InputGate, timeout_s: float | None, clock_ns: Callable[[], int]) -> BufferOrEvent | None:
    """Poll ``gate`` until it yields something; None if it is finished.  The thread sleeps in between.

    Raises:
        TimeoutError: nothing came within ``timeout_s``.
    """
    deadline_ns = None if timeout_s is None else clock_ns() + int(timeout_s * 1e9)
    while True:
        found = gate.poll_next()
        if found is not None or gate.is_finished:
            return found
        remaining_s = None if deadline_ns is None else (deadline_ns - clock_ns()) / 1e9
        if remaining_s is not None and remaining_s <= 0:
            raise TimeoutError(f"nothing came within {timeout_s:g} s: {gate!r}")
        signal = threading.Lock()  # the cheapest one-shot signal
        signal.acquire()  # no wait: the lock is new
        available, wake = gate.available_future(), signal.release
        available.add_done_callback(wake)
        try:
            # waits for data of the gate; ended by data, an error, or close
            signal.acquire(timeout=-1 if remaining_s is None else remaining_s)
        finally:
            available.remove_done_callback(wake)


def wait_for_many(
    gate: BatchInputGate, max_items: int, timeout_s: float | None, clock_ns: Callable[[], int]
) -> list[BufferOrEvent]:
    """Poll up to ``max_items`` items, and wait for the first one.

    Empty if ``gate`` is finished.  Raises as ``wait_for_next``.
    """
    found = gate.poll_many(max_items)
    if not found:
        single = wait_for_next(gate, timeout_s, clock_ns)
        if single is not None:
            found.append(single)
    return found
