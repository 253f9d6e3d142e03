"""Decisions of the fault proxy: how a link treats the bytes that pass it.

Side:       pure.
Invariants: an armed fault happens at most once, in the direction that it names; ``fired`` has those that happened.
Units:      seconds, bytes; frames that carry records, credit or messages are counted from the moment at which the fault
            was armed, 0 the first.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from tests.chaos.frame_finder import Part

Direction = Literal["to server", "to client"]


class LinkFaultKind(StrEnum):
    DELAY = "delay"
    """Every piece of bytes waits for ``seconds`` / 10, for ``seconds`` in all."""
    CUT = "cut"
    """The connection ends in the middle of a frame."""
    RESET = "reset"
    """As CUT, with a reset."""
    HOLD = "hold"
    """Nothing passes in one direction for ``seconds``."""
    DUPLICATE = "duplicate"
    """Some bytes of a frame come twice."""
    FLIP = "flip"
    """One bit of a frame changes."""


@dataclass(frozen=True, slots=True)
class LinkFault:
    """One fault.  ``frame`` and ``byte`` say where: in the k-th frame that passes, at that byte or at its last one."""

    kind: LinkFaultKind
    direction: Direction
    frame: int = 0
    byte: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Send:
    data: bytes


@dataclass(frozen=True, slots=True)
class Wait:
    """Let this direction of this connection wait."""

    seconds: float


@dataclass(frozen=True, slots=True)
class End:
    is_reset: bool


Order = Send | Wait | End


class LinkPlan:
    """The faults of one entrance.  Threading: one thread."""

    def __init__(self) -> None:
        self._armed: LinkFault | None = None
        self._num_frames = 0  # since it was armed
        self._slow_until_s = 0.0
        self._pause_s = 0.0
        self._slow_direction: Direction = "to client"
        self.fired: list[tuple[LinkFault, float]] = []

    def __repr__(self) -> str:
        return f"<LinkPlan armed={self._armed} fired={len(self.fired)}>"

    def arm(self, fault: LinkFault) -> None:
        """Let the fault happen at its frame.  A fault that was armed before and has not happened is forgotten."""
        self._armed, self._num_frames = fault, 0

    def orders(self, direction: Direction, part: Part, now_s: float) -> list[Order]:
        fault = self._armed
        if fault is None or direction != fault.direction:
            return self._in_passing(direction, part, now_s)
        if part.start == 0 and part.is_work:
            self._num_frames += 1
        if not part.is_work or self._num_frames <= fault.frame or not self._is_place(fault, part):
            return self._in_passing(direction, part, now_s)
        self._armed = None
        self.fired.append((fault, now_s))
        return self._strike(fault, part, now_s)

    def _is_place(self, fault: LinkFault, part: Part) -> bool:
        """Whether the byte lies in this part; it may lie behind the end of a short frame, so a
        later frame is as good.
        """
        return self._num_frames > fault.frame + 1 or part.start + len(part.data) > fault.byte

    def _in_passing(self, direction: Direction, part: Part, now_s: float) -> list[Order]:
        if now_s < self._slow_until_s and direction == self._slow_direction:
            return [Wait(min(self._pause_s, self._slow_until_s - now_s)), Send(part.data)]
        return [Send(part.data)]

    def _strike(self, fault: LinkFault, part: Part, now_s: float) -> list[Order]:
        data = part.data
        at = min(max(0, fault.byte - part.start), len(data) - 1)
        match fault.kind:
            case LinkFaultKind.DELAY | LinkFaultKind.HOLD:
                self._slow_until_s, self._slow_direction = now_s + fault.seconds, fault.direction
                self._pause_s = fault.seconds / 10 if fault.kind is LinkFaultKind.DELAY else fault.seconds
                return self._in_passing(fault.direction, part, now_s)
            case LinkFaultKind.CUT | LinkFaultKind.RESET:
                return [Send(data[:at]), End(fault.kind is LinkFaultKind.RESET)]
            case LinkFaultKind.DUPLICATE:
                return [Send(data[: at + 1]), Send(data[at // 2 :])]
            case LinkFaultKind.FLIP:
                return [Send(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])]
