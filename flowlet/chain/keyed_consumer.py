"""The way into a chained operator behind a ``key_by``.

Where one subtask feeds one subtask, both sides of a ``key_by`` run in one task and one loop.  To the user's functions
it must look like an exchange: the key is taken once per record, and the two sides never share a record that could
change.

Hot path.  Per record one call of the key selector and a test of the types; no record waits (bench: programs).
Side:       task.
Invariants: if the sender changes a record after it emitted it, the operator does not see that, and the other way round.
Source:     Flink serializes each record on its way through a ``KeyGroupStreamPartitioner``, whichever subtask it goes
            to.
"""

from collections.abc import Sequence
from typing import Any, Final

from flowlet.chain.key_extractor import KeyExtractor
from flowlet.chain.loop_code import LoopCode
from flowlet.chain.preview import preview
from flowlet.chain.record_copies import apart
from flowlet.chain.record_loop import LoopEnd, write_conversion, write_into
from flowlet.chain.record_shape import RecordShape, ShapeWatch
from flowlet.chain.stream_operator import OperatorCounters, StreamOperator
from flowlet.columns.column import UNCHANGING, is_unchanging
from flowlet.errors import KeyTypeError, UserFunctionError
from flowlet.keys.exact_keys import exact_key
from flowlet.typed.record_conversion import RecordConversion

_KEYS: Final = frozenset({str, int, bool, bytes})  # keys of these types need no check


class KeyedConsumer:
    """A chained operator that takes records one by one, each with its key; task thread only.

    ``loop_ends`` are those of the operator's output, ``counters`` are the operator's.  ``conversion``: to the sender's
    declared type.
    """

    def __init__(
        self,
        operator: StreamOperator,
        loop_ends: Sequence[LoopEnd],
        counters: OperatorCounters,
        keys: KeyExtractor,
        conversion: RecordConversion | None = None,
    ) -> None:
        self._conversion = conversion
        self.operator = operator
        self._behind = loop_ends
        self.loop_ends: list[LoopEnd] = [self, *loop_ends]
        self.counters = counters
        self.keys = keys
        self.shape: RecordShape | None = None
        self._watch = ShapeWatch()
        self.emit_watermark = operator.process_watermark
        self.emit_watermark_status = operator.process_watermark_status
        self.emit_latency_marker = operator.process_latency_marker
        self.emit_mark = operator.process_mark

    def __repr__(self) -> str:
        return f"<KeyedConsumer {self.operator!r}>"

    @property
    def text_key(self) -> tuple[Any, ...]:
        """Changes whenever the text of the loop is out of date: then the loop is generated again."""
        return (self.shape,)

    def enter_loop(self) -> None:
        """A run of a loop starts: choose the shape that fits the last records."""
        self.shape = self._watch.chosen(self.shape)

    def leave_loop(self) -> None:
        """Does nothing: no record waits here."""

    def drain(self) -> None:
        """Does nothing: no record waits here."""

    def write_limit(self, code: LoopCode) -> None:
        """Generates nothing: no record waits here."""

    def write(self, code: LoopCode, record: str, timestamp: str | None) -> None:
        """Generate the statements that process the record in the variable ``record``."""
        conversion = self._conversion
        is_covered = (
            conversion is not None
            and self.shape is not None
            and conversion.covers(self.shape.kind, self.shape.field_types)
        )
        if conversion is not None and not is_covered:
            record = write_conversion(conversion, code, record)
        key = self.keys.write(code, record)
        # A second variable only if the record is shared: it is one more reference, so operators behind would take any
        # record for shared.
        owned = code.variable("v") if code.is_shared(record) else record
        checked = f"{key} = {code.bind(self.checked, 'checked')}({key}, {record})"
        code.line(f"if type({key}) not in {code.bind(_KEYS, 'KEYS')}: {checked}")
        isolated = f"{owned} = {code.bind(self.isolated, 'isolated')}({record})"
        if conversion is not None and is_covered:
            isolated = f"{owned} = {code.bind(self._converted, 'converted')}({record})"
        shape = self.shape
        if shape is None:
            code.line(isolated)
        else:
            with code.block(f"if {shape.type_test(code, record)}:"):
                fields, tests = shape.write_fields(code, record)
                flat = None if shape.field_types is not None else shape.flat_test(code, record)
                tests += [] if flat is None else [flat]
                if conversion is not None and is_covered:
                    tests += conversion.tests(fields, record)
                with code.block(f"if {' and '.join(tests) or 'True'}:"):
                    isolated_one = shape.owned(code, record, fields)
                    code.line("pass" if isolated_one == owned else f"{owned} = {isolated_one}")
                with code.block("else:"):
                    code.line(isolated)
            with code.block("else:"):
                code.line(isolated)
        # Of a column the operator takes the key by itself: users' functions and aggregations know it in two forms.
        write_into(self.operator, self._behind, code, owned, timestamp, None if self.keys.is_column else key)

    def _converted(self, record: Any) -> Any:
        """An equal new record of the declared type."""
        assert self._conversion is not None, "only the text of a loop that converts calls it"
        return self.isolated(self._conversion.convert(record))

    def checked(self, key: Any, record: Any) -> Any:
        """The key, copied if it can change.

        Raises UserFunctionError, which names the record, if it cannot be a key.
        """
        try:
            exact_key(key)
        except KeyTypeError as error:
            raise UserFunctionError(self.keys.name, self.keys.subtask, preview(record)) from error
        return key if is_unchanging(key) else self.keys.copy_if_mutable(key)

    def isolated(self, record: Any) -> Any:
        """The record if it cannot change, else an equal new one."""
        self._watch.note(record)
        return record if type(record) in UNCHANGING else apart(record)
