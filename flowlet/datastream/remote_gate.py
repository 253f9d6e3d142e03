"""A gate that producers outside the cluster push into, as a program declares it.

Side:   pure.
Source: ours; PyFlink has nothing like it.
"""

from dataclasses import dataclass

from flowlet.common.checks import is_name, is_whole_number
from flowlet.common.typeinfo import TypeInformation
from flowlet.errors import JobGraphError
from flowlet.graph.partitioner import KeyGroups

__all__ = ["RemoteGate"]

MAX_NAME_BYTES = 255


@dataclass(frozen=True, slots=True)
class RemoteGate:
    """What ``from_remote_gate`` reads.

    ``producers``: how many partitions there will be; None: the job ends when the gate is told to finish.
    """

    name: str
    type_info: TypeInformation
    producers: int | None = None
    key_groups: KeyGroups | None = None
    """By what producers route; set when the job starts, if a ``key_by`` follows."""

    def __post_init__(self) -> None:
        """Check name and number.

        Raises:
            JobGraphError: one of them is not valid.
        """
        if not is_name(self.name) or not self.name.isprintable() or len(self.name.encode()) > MAX_NAME_BYTES:
            raise JobGraphError(f"a remote gate needs a name of 1 to {MAX_NAME_BYTES} printable bytes, got {self.name!r}")
        if self.producers is not None and (not is_whole_number(self.producers) or self.producers < 1):
            raise JobGraphError(f"gate {self.name!r}: producers must be a number of partitions, from 1, or None, got {self.producers!r}")
