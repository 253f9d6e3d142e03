"""The settings of one operator: name, uid, parallelism, chaining, slot sharing group.

Side:   pure.
Source: PyFlink ``pyflink.datastream.data_stream``, whose streams and sinks repeat these methods.
"""

import re
from typing import Final, Self

from flowlet.common.checks import check_name, is_name
from flowlet.common.execution_config import check_parallelism
from flowlet.datastream.slot_sharing_group import SlotSharingGroup
from flowlet.errors import JobGraphError
from flowlet.graph.transformation import (
    ChainingStrategy,
    PartitionTransformation,
    SideOutputTransformation,
    Transformation,
    UnionTransformation,
)

__all__ = ["DataStreamSink", "StreamSettings"]

_UID_HASH: Final = re.compile(r"[0-9A-Fa-f]{32}")


class StreamSettings:
    """The settings of streams and sinks.

    Each setter returns its object.  It raises ``JobGraphError``, naming the operator, if the value is invalid, or if
    the object stands for a partitioning (``rebalance()``, ``key_by()``, ...), which has no settings.
    """

    __slots__ = ("_transformation",)

    def __init__(self, transformation: Transformation) -> None:
        self._transformation = transformation

    def name(self, name: str) -> Self:
        """Name the operator, for tasks, logs and metrics."""
        self._settings("name").name = checked_text(name, "name")
        return self

    def uid(self, uid: str) -> Self:
        """Give the operator an id that survives changes of the program around it; unique in the job."""
        self._settings("uid").uid = checked_text(uid, "uid")
        return self

    def set_uid_hash(self, uid_hash: str) -> Self:
        """Give the operator this id, 32 hex digits, in place of the one that is made of its uid or its position; unique
        in the job.
        """
        transformation = self._settings("set_uid_hash")
        if not is_name(uid_hash) or not _UID_HASH.fullmatch(uid_hash):
            raise JobGraphError(f"Node hash must be a 32 character String that describes a hex code. Found: {uid_hash}")
        transformation.uid_hash = uid_hash.lower()
        return self

    def set_parallelism(self, parallelism: int) -> Self:
        """Set the number of subtasks of the operator."""
        transformation = self._settings("set_parallelism")
        check_parallelism(parallelism, f"operator {transformation.operator_name!r}: its")
        if transformation.is_non_parallel and parallelism != 1:
            raise JobGraphError(
                f"operator {transformation.operator_name!r} cannot run in parallel: its parallelism must be 1, got "
                f"{parallelism}; "
                "set the parallelism of the operators behind it"
            )
        transformation.parallelism = parallelism
        return self

    def set_description(self, description: str) -> Self:
        """Describe the operator in the execution plan."""
        self._settings("set_description").description = checked_text(description, "set_description")
        return self

    def disable_chaining(self) -> Self:
        """Run the operator in its own task."""
        self._settings("disable_chaining").chaining = ChainingStrategy.NEVER
        return self

    def slot_sharing_group(self, slot_sharing_group: str | SlotSharingGroup) -> Self:
        """Put the operator, and operators behind it without a group, into a slot sharing group."""
        transformation = self._settings("slot_sharing_group")
        if not isinstance(slot_sharing_group, SlotSharingGroup):
            slot_sharing_group = SlotSharingGroup(slot_sharing_group)
        slot_sharing_group.warn_of_resources()
        transformation.slot_sharing_group = slot_sharing_group.get_name()
        return self

    def _settings(self, method: str) -> Transformation:
        """The transformation, if it stands for an operator."""
        if isinstance(self._transformation, UnionTransformation | SideOutputTransformation):
            what = "union" if isinstance(self._transformation, UnionTransformation) else "side output"
            raise JobGraphError(
                f"{method}() on a {what}, which is no operator; call it on the operator before or after it"
            )
        if isinstance(self._transformation, PartitionTransformation):
            strategy = self._transformation.partitioner.ship_strategy
            raise JobGraphError(
                f"{method}() on a {strategy} partitioning, which is no operator; call it on the operator before or "
                "after the partitioning"
            )
        return self._transformation


class DataStreamSink(StreamSettings):
    """The end of a stream, whose settings can still be changed."""

    __slots__ = ()


def checked_text(text: str, method: str) -> str:
    check_name(text, f"{method}() needs a text that is not empty")
    return text
