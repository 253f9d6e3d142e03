"""A gate that producers outside the cluster push into, as a program declares it.

Side:   pure.
Source: none in PyFlink.
"""

from flowlet.common.checks import check_number, is_name
from flowlet.common.typeinfo import RowTypeInfo, TypeInformation, Types, holds_any_object
from flowlet.common.values.time_values import LOCAL_DATE_TIME
from flowlet.errors import JobGraphError
from flowlet.graph.partitioner import KeyGroups
from netstack.late import dataclass

__all__ = ["RemoteGate"]

MAX_NAME_BYTES = 255
_TIMES = (Types.LONG(), Types.SQL_TIMESTAMP(), Types.INSTANT(), LOCAL_DATE_TIME)


@dataclass(frozen=True, slots=True)
class RemoteGate:
    """The gate that ``from_remote_gate`` reads.

    ``producers``: the number of partitions after which the gate ends; None: it ends when the job is told to finish it.
    """

    name: str
    type_info: TypeInformation
    producers: int | None = None
    key_groups: KeyGroups | None = None
    """The key by which producers route records; set when the job starts, if a ``key_by`` follows."""
    event_time: str | None = None
    """The column with the event time of a record; None: records have none."""
    allow_pickle: bool = False
    """Whether records may be pickles, which run code in the job."""

    def __post_init__(self) -> None:
        """Check name, number, type and column.  Raises JobGraphError if one of them is not valid."""
        if not is_name(self.name) or not self.name.isprintable() or len(self.name.encode()) > MAX_NAME_BYTES:
            raise JobGraphError(
                f"a remote gate needs a name of 1 to {MAX_NAME_BYTES} printable bytes, got {self.name!r}"
            )
        if self.producers is not None:
            check_number(
                self.producers, 1, f"gate {self.name!r}: producers must be a number of partitions, from 1, or None"
            )
        self._check_trust()
        if self.event_time is not None:
            self._check_event_time()

    @property
    def event_time_position(self) -> int:
        """The position of the column ``event_time`` in a record."""
        assert isinstance(self.type_info, RowTypeInfo), "checked by __post_init__"
        assert self.event_time is not None, "the caller tested that there is a column"
        position: int = self.type_info.get_field_names().index(self.event_time)
        return position

    def _check_trust(self) -> None:
        holds_any = holds_any_object(self.type_info)
        if holds_any and not self.allow_pickle:
            raise JobGraphError(
                f"gate {self.name!r} takes any objects ({self.type_info!r}): they travel as pickles, so every producer "
                "could run its own code in the job.  Declare the records, for example type_info=Types.ROW_NAMED(...); "
                "or pass allow_pickle=True if you trust everyone who can open the gate"
            )
        if self.allow_pickle and not holds_any:
            raise JobGraphError(
                f"gate {self.name!r} has a declared type, {self.type_info!r}: it reads no pickles, leave out "
                "allow_pickle"
            )

    def _check_event_time(self) -> None:
        wanted = (
            f"gate {self.name!r}: event_time names a column of rows that is a timestamp, an instant or a Long of "
            "milliseconds"
        )
        if not isinstance(self.type_info, RowTypeInfo):
            raise JobGraphError(f"{wanted}, got {self.event_time!r} of {self.type_info!r}")
        names = self.type_info.get_field_names()
        if self.event_time not in names:
            raise JobGraphError(f"{wanted}; {self.event_time!r} is none of {', '.join(names)}")
        found = self.type_info.get_field_types()[self.event_time_position]
        if found not in _TIMES:
            raise JobGraphError(f"{wanted}; {self.event_time!r} is {found!r}")
