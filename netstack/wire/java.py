"""Java's own formats, as far as Flink puts them on the wire.

Side:       pure.
Invariants: what is decoded encodes to the same bytes again.
Source:     ``java.io.DataOutput.writeUTF``.
"""

from netstack.errors import LocalProtocolError, RemoteProtocolError

_MAX_UTF_BYTES = 0xFFFF


def encode_utf(text: str) -> bytes:
    """``text`` behind its u16 length, in Java's modified UTF-8: NUL takes two bytes, what is beyond 16 bits six.

    Raises:
        LocalProtocolError: it takes more than 65,535 bytes.
    """
    body = _modified(text)
    if len(body) > _MAX_UTF_BYTES:
        raise LocalProtocolError(f"a text of {len(body)} bytes cannot be encoded, the most is {_MAX_UTF_BYTES}")
    return len(body).to_bytes(2, "big") + body


def decode_utf(view: memoryview) -> tuple[str, int]:
    """The text at the start of ``view``, and how many bytes it took with its length.

    Raises:
        RemoteProtocolError: bytes are missing, or are not what ``encode_utf`` would make of any text.
    """
    end = 2 + int.from_bytes(view[:2], "big")
    if len(view) < max(2, end):
        raise RemoteProtocolError(f"a text of {end - 2} bytes is announced, {max(0, len(view) - 2)} bytes follow")
    return decode_modified(bytes(view[2:end])), end


def decode_modified(body: bytes) -> str:
    """The text of ``body`` without its length.

    Raises:
        RemoteProtocolError: ``body`` is not what Java makes of any text.
    """
    try:
        units = body.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
        text = units.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass")
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"a text is no modified UTF-8: {error}") from error
    if _modified(text) != body:
        raise RemoteProtocolError(f"a text is no modified UTF-8: {body[:40]!r}")
    return text


def _modified(text: str) -> bytes:
    if text.isascii() and "\0" not in text:
        return text.encode()
    units = text.encode("utf-16-be", "surrogatepass")
    halves = "".join(chr(units[at] << 8 | units[at + 1]) for at in range(0, len(units), 2))
    return halves.encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80")
