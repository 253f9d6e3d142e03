"""Windows of columns: which rows belong to which.

Hot path: one division per row and chunk.

Side:       pure.
Units:      milliseconds; panes are numbered, pane 0 begins at the offset.
Source:     Flink ``TimeWindow.getWindowStartWithOffset``, ``SlidingEventTimeWindows``, ``EventTimeSessionWindows``;
            panes: "No pane, no gain" (Li et al., 2005).
"""

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flowlet.kernels.windows.column_inputs import Int64Array
from netstack.late import dataclass

# Timestamps beyond this would not leave room for the ends of windows and sessions.
MAX_WINDOW_TIMESTAMP: Final = 1 << 61


@dataclass(frozen=True, slots=True)
class AlignedWindows:
    """Windows of ``size`` that begin at every ``slide``: tumbling ones if both are equal.

    All windows consist of whole panes, which they share.
    """

    size: int
    slide: int
    offset: int = 0
    is_event_time: bool = True

    @property
    def pane(self) -> int:
        """The length of a pane."""
        return math.gcd(self.size, self.slide)

    @property
    def size_panes(self) -> int:
        """The size of a window in panes."""
        return self.size // self.pane

    @property
    def slide_panes(self) -> int:
        """From the start of one window to the next, in panes."""
        return self.slide // self.pane

    @property
    def is_tumbling(self) -> bool:
        """Whether a window is a pane."""
        return self.size == self.slide

    @property
    def max_windows(self) -> int:
        """To how many windows a row belongs at most."""
        return -(-self.size // self.slide)

    def panes(self, timestamps: Int64Array) -> Int64Array:
        """The pane of each timestamp."""
        found: Int64Array = (timestamps - self.offset) // self.pane if self.offset else timestamps // self.pane
        return found

    def last_windows(self, panes: Int64Array) -> Int64Array:
        """The last window that can hold each pane, by its first pane."""
        if self.slide_panes == 1:
            return panes
        found: Int64Array = panes // self.slide_panes * self.slide_panes
        return found

    def holds(self, panes: Int64Array, windows: Int64Array) -> NDArray[np.bool_]:
        """Whether the windows, which do not begin behind the panes, reach as far."""
        found: NDArray[np.bool_] = windows > panes - self.size_panes
        return found

    def last_ended(self, watermark: Any) -> Any:
        """The last window, by its first pane, all of whose timestamps are at or below a watermark, if one began at
        every pane.
        """
        return (watermark + 1 - self.offset) // self.pane - self.size_panes

    def start_ms(self, windows: Any) -> Any:
        """When windows begin, given by their first panes."""
        return windows * self.pane + self.offset


@dataclass(frozen=True, slots=True)
class SessionWindows:
    """Windows of rows with the same key, of which each is at most ``gap`` behind the one before."""

    gap: int
    is_event_time: bool = True


WindowShape = AlignedWindows | SessionWindows
