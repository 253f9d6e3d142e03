"""How records become bytes: ``Encoder``.

Side:   pure.  Encoders are pickled with the job, and called on the thread of one task.
Source: PyFlink ``pyflink.common.serialization``; Flink ``Encoder``, ``SimpleStringEncoder``.  Your own encoders are not in PyFlink.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flowlet.common.not_yet import missing_names
from flowlet.errors import JobGraphError

__all__ = ["Encoder"]


class Encoder:
    """How a record is written into a file of a row format; your own encoder has ``encode``."""

    def encode(self, value: Any) -> bytes:
        """The bytes of one record, with what ends it, such as a line end."""
        raise NotImplementedError(f"{type(self).__name__} has no encode()")

    def encode_all(self, values: Sequence[Any]) -> bytes:
        """The bytes of many records; override it where one call for many is cheaper."""
        return b"".join(map(self.encode, values))

    @staticmethod
    def simple_string_encoder(charset_name: str = "UTF-8") -> "Encoder":
        """A line per record: its ``str``.

        Raises:
            JobGraphError: the charset is unknown, or begins every text with a mark of its own.
        """
        try:
            mark = "".encode(charset_name)
        except (LookupError, TypeError) as error:
            raise JobGraphError(
                f"simple_string_encoder: the charset {charset_name!r} is unknown; use one that Python knows, such as UTF-8"
            ) from error
        if mark:
            raise JobGraphError(
                f"simple_string_encoder: {charset_name} begins every text with a byte order mark, which would be inside files; use "
                "UTF-8, or one with a fixed order, such as UTF-16LE"
            )
        return _LineEncoder(charset_name)


class _LineEncoder(Encoder):
    """A line per record."""

    def __init__(self, charset_name: str) -> None:
        self._charset = charset_name

    def encode(self, value: Any) -> bytes:
        """One line."""
        return f"{value!s}\n".encode(self._charset)

    def encode_all(self, values: Sequence[Any]) -> bytes:
        """A line for each; nothing for none."""
        lines = values if set(map(type, values)) == {str} else [str(each) for each in values]
        return ("\n".join(lines) + "\n").encode(self._charset) if lines else b""


if not TYPE_CHECKING:
    __getattr__ = missing_names(__name__)
