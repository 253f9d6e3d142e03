"""Rows of a snapshot in the form that the program declares now.

Side:   pure.
Source: Flink ``StateTable`` with a serializer that is compatible after migration; ``TtlAwareSerializer`` for entries
        that begin, or cease, to expire.
"""

from collections.abc import Callable
from typing import Any

from flowlet.errors import StateRestoreError
from flowlet.state.keyed_state_snapshot import StateDescription, StateKind, TypeForm
from flowlet.state.type_compatibility import Convert, converter


def row_converter(
    name: str, written: StateDescription, declared: StateDescription, now_ms: int
) -> Callable[[Any], Any] | None:
    """What makes rows of the declared form of rows that were written; None: they are the same.

    Args:
        name: the state's.
        written: what the snapshot says.
        declared: what the program says.
        now_ms: entries that begin to expire were last used then.

    Raises:
        StateRestoreError: they do not go together; names the state, both types and what to do.  The converter raises
            it, too: of a value that is not of the type that was declared for it.
    """
    convert = _value_converter(name, written, declared)
    if convert is None and written.has_ttl == declared.has_ttl:
        return None

    def entry(stored: Any) -> Any:
        value, used_ms = stored if written.has_ttl else (stored, now_ms)
        if convert is not None:
            try:
                value = convert(value)
            except Exception as error:
                raise StateRestoreError(
                    f"state {name!r} has a value that is not of the type {written.type_name} with which it was "
                    "written, so that it cannot "
                    f"become {declared.type_name} ({type(error).__name__}: {error}); declare the type as it was written"
                ) from error
        return (value, used_ms) if declared.has_ttl else value

    match declared.kind:
        case StateKind.LIST:
            return lambda row: tuple(map(entry, row))
        case StateKind.MAP:
            return lambda row: tuple((key, entry(stored)) for key, stored in row)
        case _:
            return entry


def _value_converter(name: str, written: StateDescription, declared: StateDescription) -> Convert | None:
    if written.kind is declared.kind and written.type_name == declared.type_name:
        return None
    reason = ""
    if written.kind is declared.kind and written.type_form is not None and declared.type_form is not None:
        try:
            return _element_converter(declared.kind, written.type_form, declared.type_form)
        except StateRestoreError as error:
            reason = f" ({error})"
    raise StateRestoreError(
        f"state {name!r} was written as {written}, and is declared as {declared} now{reason}; "
        "declare it as it was written, or use another name"
    )


def _element_converter(kind: StateKind, written: TypeForm, declared: TypeForm) -> Convert | None:
    """Of what a row has one or many of: the value, an element, or the value of an entry of a map."""
    match kind:
        case StateKind.LIST:
            return converter(written.parts[0], declared.parts[0])
        case StateKind.MAP:
            converter(written, declared)  # looks at the keys
            return converter(written.parts[1], declared.parts[1])
        case _:
            return converter(written, declared)
