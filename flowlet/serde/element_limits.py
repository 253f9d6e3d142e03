"""The largest stream element, and the size above which an incomplete one is kept in a file.

A module of its own, because plain jobs need the limits, but load no serializer (which loads numpy).

Side:   pure.
Source: Flink ``SpillingAdaptiveSpanningRecordDeserializer``: 5 MiB in memory, at least 100 KiB.  ``max_element_bytes``
        is ours; a job sets it for the records between its tasks (``flowlet.max-record-bytes``).
"""

from typing import Final

from flowlet.common.job_settings import DEFAULT_MAX_RECORD_BYTES, LARGEST_MAX_RECORD_BYTES
from flowlet.errors import ConfigError
from netstack.late import dataclass

MIN_SPILL_BYTES: Final = 100 << 10


@dataclass(frozen=True, slots=True)
class ElementLimits:
    """Limits of one task's elements.  Sender and receiver must agree on ``max_element_bytes``.

    ``max_element_bytes``: larger elements are refused, by the sender if it can tell.  ``spill_above_bytes``: an
    incomplete element above this size goes to a file.  ``spill_directory``: the directory of that file; None: the
    system's directory for temporary files.

    Raises:
        ConfigError: a number is out of range.
    """

    max_element_bytes: int = DEFAULT_MAX_RECORD_BYTES
    spill_above_bytes: int = 5 << 20
    spill_directory: str | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.max_element_bytes <= LARGEST_MAX_RECORD_BYTES:
            raise ConfigError(
                f"max_element_bytes is {self.max_element_bytes}, allowed are 1 to {LARGEST_MAX_RECORD_BYTES}"
            )
        if self.spill_above_bytes < MIN_SPILL_BYTES:
            raise ConfigError(f"spill_above_bytes is {self.spill_above_bytes}, allowed are {MIN_SPILL_BYTES} and more")


DEFAULT_ELEMENT_LIMITS: Final = ElementLimits()
# For a reader that leaves the limit to its sender.
LARGEST_ELEMENT_LIMITS: Final = ElementLimits(LARGEST_MAX_RECORD_BYTES)
