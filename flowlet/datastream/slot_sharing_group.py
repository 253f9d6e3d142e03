"""``SlotSharingGroup``: operators that may run in the same slots.

Side:   pure.
Source: PyFlink ``pyflink.datastream.slot_sharing_group``.
Absent: resource specifications (``MemorySize``, CPU cores, external resources): all slots are equal.
"""

from dataclasses import dataclass

from flowlet.common.checks import is_name
from flowlet.errors import JobGraphError

__all__ = ["SlotSharingGroup"]


@dataclass(frozen=True, slots=True)
class SlotSharingGroup:
    """A named group; made by ``SlotSharingGroup.builder(name).build()``."""

    name: str

    def __post_init__(self) -> None:
        if not is_name(self.name):
            raise JobGraphError(f"the name of a slot sharing group is a text that is not empty, got {self.name!r}")

    def get_name(self) -> str:
        """The name of the group."""
        return self.name

    @staticmethod
    def builder(name: str) -> "SlotSharingGroup.Builder":
        """A builder of a group of that name."""
        return SlotSharingGroup.Builder(name)

    class Builder:
        """Builds a ``SlotSharingGroup``."""

        def __init__(self, name: str) -> None:
            self._name = name

        def build(self) -> "SlotSharingGroup":
            """Build the group.  Raises JobGraphError if the name is empty."""
            return SlotSharingGroup(self._name)
