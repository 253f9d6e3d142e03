"""Key selectors that do nothing but take one field of the record, or the record.

Side:   pure.
Source: ``bytecode``.  Such a selector need not be called (hot-path measurements: 41 -> 28 ns per key), and its column is known.
"""

import operator
from typing import Any

from flowlet.column_key import ColumnKey
from flowlet.fusing.bytecode import instructions_of, plain_code
from flowlet.fusing.inlining import inline_expression


def field_selected_by(selector: Any) -> int | str | None:
    """The field, if the selector is exactly ``record[k]``, ``record["name"]``, ``itemgetter(k)`` or a column; None if that is not sure.

    A position is never negative: counted from the end, the same one would be different columns of records of different lengths.
    What the record is, and whether it has the field, is for the caller to see.
    """
    if isinstance(selector, ColumnKey):
        return selector.name
    field = _of_itemgetter(selector) if type(selector) is operator.itemgetter else _of_function(selector)
    if type(field) is str or (type(field) is int and field >= 0):
        return field
    return None


def selects_record(selector: Any) -> bool:
    """Whether the selector does nothing but return its record; False if that is not sure."""
    expression = inline_expression(selector, 1)
    if expression is None or expression.constants:
        return False
    tree = expression.tree(("record",), (), lambda _positions: 0)
    return getattr(tree, "id", None) == "record"


def _of_itemgetter(selector: Any) -> Any:
    _, fields = selector.__reduce__()
    return fields[0] if len(fields) == 1 else None


def _of_function(selector: Any) -> Any:
    code = plain_code(selector)
    if code is None or code.co_argcount != 1:
        return None
    match [(instruction.opname, instruction.argval) for instruction in instructions_of(code)]:
        case [("LOAD_FAST", _), ("LOAD_CONST", field), ("BINARY_SUBSCR", _), ("RETURN_VALUE", _)]:
            return field  # the one variable that is loaded is the argument: there is no store before
        case _:
            return None
