"""``OutputTag``: the name of a side output.

Side:   pure.
Source: PyFlink ``pyflink.datastream.output_tag``.  Tags with equal ids are equal.
"""

from flowlet.common.checks import check_kind, check_name
from flowlet.common.not_yet import java_only
from flowlet.common.typeinfo import PickledBytesTypeInfo, RowTypeInfo, TypeInformation

__all__ = ["OutputTag"]


class OutputTag:
    """Names a side output; a process function emits into it with ``yield tag, value``.

    Args:
        tag_id: not empty.
        type_info: of its records; a list: of the fields of rows; None: any Python object.

    Raises:
        JobGraphError: an argument has the wrong type, or the id is empty.
    """

    __slots__ = ("tag_id", "type_info")
    get_java_output_tag = java_only("the tag itself, or its tag_id")

    def __init__(self, tag_id: str, type_info: TypeInformation | list[TypeInformation] | None = None) -> None:
        check_name(tag_id, "the id of an OutputTag must be a text that is not empty")
        if isinstance(type_info, list):
            type_info = RowTypeInfo(type_info)
        check_kind(type_info, TypeInformation | None, f"OutputTag({tag_id!r}) needs a type such as Types.STRING()")
        self.tag_id = tag_id
        self.type_info: TypeInformation = PickledBytesTypeInfo() if type_info is None else type_info

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OutputTag) and self.tag_id == other.tag_id

    def __hash__(self) -> int:
        return hash(self.tag_id)

    def __repr__(self) -> str:
        return f"OutputTag({self.tag_id!r})"
