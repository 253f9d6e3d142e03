"""Converts values into their declared type, as PyFlink's coders do, and writes the text of records of a declared type
as Java does, for ``print`` and text files.

Hot path: one call per record that is not kept by column (``record_conversion``).  Of a tuple or row of plain values the
generated function tests the exact types, in about the time of a call of a user's function (bench: wordcount).
Side:       pure.
Rules:      values of plain types are converted by their forms (``field_values``, ``time_values``), and a row gets the
            declared names in their order.  A value of another kind is an error.  None may be a row's field, an element
            of a basic or object array, a value of a map, and a record by itself of a type whose values may be null in
            Java.
            Records without a declared type have Python's text: ``print`` of PyFlink shows that, too, and its files an
            address of Java.  Rows by themselves have Python's text in ``print`` and Java's in files, as in PyFlink.  An
            array by itself, which Java writes as an address, is written like a list.
Invariants: a value that is of its type already is returned itself; nothing is changed in place.
Source:     PyFlink ``coder_impl_fast.pyx``, ``coders.from_type_info_proto``; Java's treatment of None.
            Java ``Object.toString`` of the objects that Flink's serializers make: ``Tuple``, ``Row``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

from flowlet.common.typeinfo import (
    ARRAY_TYPES,
    BasicArrayTypeInfo,
    MapTypeInfo,
    ObjectArrayTypeInfo,
    PickledBytesTypeInfo,
    RowTypeInfo,
    TupleTypeInfo,
    TypeInformation,
    part_types,
)
from flowlet.common.types import Row, RowFieldsError, field_names_of, fields_of_record, restored_row
from flowlet.common.values.conversion import PartRules, field_form, integer_limits, is_bytes, or_none
from flowlet.common.values.field_values import Convert, Text, TypeMismatchError, described, wrong_kind
from netstack.late import is_instance_of_late


def value_converter(
    type_info: TypeInformation, *, is_collected: bool = False, is_stored: bool = False, refuse: Convert | None = None
) -> Convert | None:
    """The function that converts a record to its declared type; None: records stay as they are.

    Args:
        type_info: the declared type.
        is_collected: whether the user's program gets the records: it gets Java's shortest text of a FLOAT as a number,
            times without fractions of seconds, and primitive arrays of bytes as lists.
        is_stored: whether the values are those of a state: any part of them may be None, a list will do for a tuple and
            for bytes, and a tuple for a list.
        refuse: called in place of a slower conversion of records that are not exactly of their type; raises the
            caller's error.

    Raises:
        TypeMismatchError: by the function, if the record is not of the type.
    """
    rules = _StoredCompiler() if is_stored else _Compiler(is_collected=is_collected)
    return rules.record_converter(type_info, refuse)


def changes_values(type_info: TypeInformation) -> bool:
    """Whether values of the right kind may still become others: FLOAT, rows, times; everything else is only checked."""
    form = field_form(type_info)
    if isinstance(type_info, RowTypeInfo) or (form is not None and form.changes):
        return True
    return any(map(changes_values, part_types(type_info)))


def is_nullable(type_info: TypeInformation) -> bool:
    """Whether a record of this type, by itself, may be None."""
    form = field_form(type_info)
    return form is not None and form.is_nullable


# ---------------------------------------------------------------- values with parts, some by generated functions


class _Compiler(PartRules):
    """Makes converters; those for the user's program (``is_collected``) differ in a few plain types."""

    errors: ClassVar[tuple[type[Exception], ...]] = (TypeMismatchError,)

    def __init__(self, *, is_collected: bool = False) -> None:
        self._is_collected = is_collected

    def record_converter(self, type_info: TypeInformation, refuse: Convert | None) -> Convert | None:
        if isinstance(type_info, TupleTypeInfo | RowTypeInfo):
            return self._generated(type_info, refuse or super().fields_converter(type_info))
        convert = self.converter(type_info)
        if convert is None:
            return None
        slow = refuse or (or_none(convert) if is_nullable(type_info) else convert)
        known: dict[str, Any] = {"slow": slow}
        test, result = self._leaf_code("v", type_info, known)
        return slow if test is None else compiled(known, [f"if {test}:", f"    return {result}", "return slow(v)"])

    def plain(self, type_info: TypeInformation) -> Convert | None:
        form = field_form(type_info)
        if form is None:
            return None
        return form.collected if self._is_collected and form.collected is not None else form.converted

    def fields_converter(self, type_info: TupleTypeInfo | RowTypeInfo) -> Convert:
        return self._generated(type_info, super().fields_converter(type_info))

    def takes_none(self, type_info: TypeInformation) -> bool:
        return isinstance(type_info, RowTypeInfo | BasicArrayTypeInfo | ObjectArrayTypeInfo)

    def place(self, name: object, type_info: TypeInformation) -> str:
        return f"field {name!r} ({type_info!r})"

    def inside(self, error: Exception, place: str) -> Exception:
        assert isinstance(error, TypeMismatchError), "there are no others"
        return error.inside(place)

    def fields(self, type_info: TupleTypeInfo | RowTypeInfo, value: Any) -> Sequence[Any]:
        if isinstance(type_info, TupleTypeInfo):
            size = len(type_info.get_field_types())
            if len(_instance(value, tuple)) < size:
                raise TypeMismatchError(f"{described(value)} has {len(value)} fields, not {size}")
            return value  # type: ignore[no-any-return]  # a tuple
        try:
            return fields_of_record(_instance(value, Row), type_info.get_field_names())
        except RowFieldsError as error:
            raise TypeMismatchError(f"{described(value)} is {error}") from None

    def elements(self, type_info: Any, value: Any) -> Sequence[Any]:
        return _instance(value, list)  # type: ignore[no-any-return]  # a list

    def entries(self, type_info: MapTypeInfo, value: Any) -> Iterable[tuple[Any, Any]]:
        return _instance(value, dict).items()  # type: ignore[no-any-return]  # of a dict

    def _generated(self, type_info: TupleTypeInfo | RowTypeInfo, slow: Convert) -> Convert:
        """``slow``, with a faster way for records whose plain fields are of the exact types."""
        types = type_info.get_field_types()
        if not types:
            return slow
        row_names = type_info.get_field_names() if isinstance(type_info, RowTypeInfo) else None
        is_row = row_names is not None
        fields = [f"f{index}" for index in range(len(types))]
        known: dict[str, Any] = {
            "slow": slow,
            "NAMES": row_names,
            "restored": restored_row,
            "Row": Row,
            "Mismatch": TypeMismatchError,
        }
        tests, results = [], []
        for field, each in zip(fields, types, strict=True):
            test, result = self._leaf_code(field, each, known)
            if test is not None:
                tests.append(f"({test} or {field} is None)" if is_row else test)
            results.append(f"None if {field} is None else {result}" if is_row and result != field else result)
        if is_row:
            head, values = (
                f"type(v) is Row and (v._fields is None or v._fields == NAMES) and len(v._values) == {len(fields)}",
                "v._values",
            )
            new = f"restored(NAMES, [{', '.join(results)}], v._row_kind)"
            new = new if results != fields else f"v if v._fields is not None else {new}"
        else:
            head, values = f"type(v) is tuple and len(v) == {len(fields)}", "v"
            new = f"({', '.join(results)},)" if results != fields else "v"
        # A nested value that does not fit raises without its place: the slow way finds it again, and says where.
        return compiled(
            known,
            [
                f"if {head}:",
                f"    {', '.join(fields)}, = {values}",
                f"    if {' and '.join(tests) or 'True'}:",
                f"        try: return {new}",
                "        except Mismatch: pass",
                "return slow(v)",
            ],
        )

    def _leaf_code(self, field: str, type_info: TypeInformation, known: dict[str, Any]) -> tuple[str | None, str]:
        """The test whether a variable is of its exact type (None: no test), and the expression for
        its converted value.
        """
        convert = self.converter(type_info)
        if convert is None:
            return None, field
        form = field_form(type_info)
        if form is None or form.exact is None or (self._is_collected and form.collected is not None):
            known[f"c{field}"] = convert
            return None, f"c{field}({field})"
        known[f"T{field}"] = form.exact
        test = f"type({field}) is T{field}"
        if form.changes:
            known["single"] = ctypes.c_float
            return test, f"single({field}).value"
        limits = integer_limits(type_info)
        return (test if limits is None else f"{test} and {limits[0]} <= {field} <= {limits[1]}"), field


class _StoredCompiler(_Compiler):
    """Makes converters of values in a state, which accept what PyFlink's coders write there."""

    def plain(self, type_info: TypeInformation) -> Convert | None:
        convert = super().plain(type_info)
        if convert is None or not is_bytes(type_info):
            return convert
        of_list = self._list_converter(type_info)

        def converted(value: Any) -> Any:
            if type(value) is bytes:
                return value
            return of_list(value) if _is_list(value) else convert(value)

        return converted

    def takes_none(self, type_info: TypeInformation) -> bool:
        return True

    def key(self, type_info: MapTypeInfo) -> Convert | None:
        convert = self.part(type_info.key_type_info)
        if convert is None:
            return None

        def checked(value: Any) -> Any:
            if value is not None:
                convert(value)
            return value  # a list that was made of a tuple has no hash

        return checked

    def fields(self, type_info: TupleTypeInfo | RowTypeInfo, value: Any) -> Sequence[Any]:
        if isinstance(type_info, TupleTypeInfo):
            return super().fields(type_info, tuple(value) if isinstance(value, list) else value)
        names = type_info.get_field_names()
        if isinstance(value, Row) and len(value) == len(names):
            found = dict(zip(field_names_of(value) or names, value, strict=True))
            return list(map(found.get, names))
        return super().fields(type_info, value)

    def elements(self, type_info: Any, value: Any) -> Sequence[Any]:
        return value if type(value) is list or _is_list(value) else super().elements(type_info, value)


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple) or is_instance_of_late(value, "numpy", "ndarray")


def compiled(known: dict[str, Any], lines: list[str]) -> Convert:
    """Compile a function of ``v`` with these lines; ``known``: names that become default arguments, hence locals."""
    head = f"def convert(v, {', '.join(f'{name}={name}' for name in known)}):"
    namespace = dict(known)
    text = "\n    ".join([head, *lines]) + "\n"
    exec(compile(text, "<declared type>", "exec", dont_inherit=True), namespace)  # noqa: S102 - text of ours
    convert: Convert = namespace["convert"]
    return convert


def _instance(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise wrong_kind(value, f"a {kind.__name__}")
    return value


def printed_text(type_info: TypeInformation | None) -> Text:
    """The function that gives the line ``print`` writes for a record of the type; None: it is not declared."""
    return row_text if isinstance(type_info, RowTypeInfo) else written_text(type_info)


def written_text(type_info: TypeInformation | None) -> Text:
    """The function that gives the line of a text file for a record of the type; None: it is not declared."""
    return str if type_info is None or isinstance(type_info, PickledBytesTypeInfo) else _text_of(type_info)


def row_text(row: Any) -> str:
    """A row as PyFlink prints it: its kind, then Python's texts of its fields; anything else as Python prints it."""
    return f"{row.get_row_kind()}[{','.join(map(str, row))}]" if isinstance(row, Row) else str(row)


def _text_of(type_info: TypeInformation) -> Text:
    text = _plain_text_of(type_info)
    return lambda value: "null" if value is None else text(value)


def _plain_text_of(type_info: TypeInformation) -> Text:
    match type_info:
        case TupleTypeInfo():
            return _text_of_fields("(", ",", ")", type_info.get_field_types())
        case RowTypeInfo():
            return _text_of_fields("{v.get_row_kind()}[", ", ", "]", type_info.get_field_types())
        case _ if isinstance(type_info, ARRAY_TYPES):
            return _list_text(_text_of(type_info.elem_type))
        case MapTypeInfo():
            return _map_text(type_info.key_type_info, _text_of(type_info.value_type_info))
        case _:
            form = field_form(type_info)
            return str if form is None else form.java_text


def _text_of_fields(head: str, separator: str, end: str, types: Sequence[TypeInformation]) -> Text:
    """A function generated for the types: a pair of a text and a number takes 0.6 us, with a call
    for each field 2 us.
    """
    known = {f"t{index}": text for index, text in enumerate(map(_plain_text_of, types))}
    texts = [f"f{index}" if known[f"t{index}"] is str else f"t{index}(f{index})" for index in range(len(types))]
    shown = separator.join(f"{{'null' if f{index} is None else {text}!s}}" for index, text in enumerate(texts))
    names = "".join(f"f{index}, " for index in range(len(types)))
    return compiled(dict(known), [f"{names or '()'} = v", f'return f"{head}{shown}{end}"'])


def _list_text(text: Text) -> Text:
    def of_list(values: Iterable[Any]) -> str:
        if isinstance(values, bytes):
            values = [each - 256 if each > 127 else each for each in values]  # Java's bytes have a sign
        return f"[{', '.join(map(text, values))}]"

    return of_list


def _map_text(key_type: TypeInformation, value_text: Text) -> Text:
    key_text = _text_of(key_type)
    form = field_form(key_type)
    hash_of = None if form is None else form.java_hash

    def of_map(entries: dict[Any, Any]) -> str:
        items = entries.items() if hash_of is None else _in_java_order(entries, hash_of)
        return f"{{{', '.join(f'{key_text(key)}={value_text(value)}' for key, value in items)}}}"

    return of_map


def _in_java_order(entries: dict[Any, Any], hash_of: Callable[[Any], int]) -> list[tuple[Any, Any]]:
    """The entries in the order of a ``java.util.HashMap``: by bucket, and by arrival in each."""
    num_buckets = 1
    while len(entries) > 0.75 * num_buckets:  # HashMap's load factor
        num_buckets *= 2

    def bucket_of(entry: tuple[Any, Any]) -> int:
        code = hash_of(entry[0]) & 0xFFFFFFFF
        return (code ^ code >> 16) & (num_buckets - 1)

    return sorted(entries.items(), key=bucket_of)
