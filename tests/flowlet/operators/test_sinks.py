import io
import sys
from typing import Any

import pytest

from flowlet.errors import FlowletError, UserFunctionError
from flowlet.operators.sinks import DiscardSink, FunctionSink, PrintSink
from flowlet.records import Chunk
from tests.flowlet.operators.harness import Harness

PREFIXES = [(None, 1, 0, ""), ("", 1, 0, ""), ("out", 1, 0, "out> "), (None, 4, 2, "3> "), ("out", 4, 0, "out:1> ")]


@pytest.mark.parametrize(("identifier", "parallelism", "subtask", "prefix"), PREFIXES)
def test_print_writes_lines_with_flinks_prefix(
    identifier: str | None, parallelism: int, subtask: int, prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    harness = Harness(PrintSink(identifier), parallelism=parallelism, subtask=subtask)

    harness.process(("a", 1), "text", None)

    assert capsys.readouterr().out == f"{prefix}('a', 1)\n{prefix}text\n{prefix}None\n"


class CountingStream(io.TextIOWrapper):
    writes = flushes = 0

    def write(self, text: str) -> int:
        self.writes += 1
        return super().write(text)

    def flush(self) -> None:
        self.flushes += 1
        super().flush()


def test_print_writes_once_per_chunk_and_flushes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of several tasks in one process do not mix, and appear at once."""
    raw = io.BytesIO()
    stream = CountingStream(raw, encoding="utf-8", newline="\n")
    monkeypatch.setattr(sys, "stdout", stream)

    Harness(PrintSink()).process(*range(100))

    assert (stream.writes, stream.flushes >= 1) == (1, True)
    assert raw.getvalue() == b"".join(b"%d\n" % number for number in range(100))


@pytest.mark.parametrize(("encoding", "expected"), [("ascii", rb"\xe9 \ud83d"), ("utf-8", b"\xc3\xa9 \\ud83d")])
def test_print_escapes_what_the_terminal_cannot_show(encoding: str, expected: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))

    Harness(PrintSink()).process("é \ud83d")

    assert raw.getvalue() == expected + b"\n"


def test_print_names_the_record_whose_str_fails() -> None:
    class Silent:
        def __str__(self) -> str:
            raise ValueError("not a word")

        def __repr__(self) -> str:
            return "<Silent>"

    with pytest.raises(UserFunctionError) as caught:
        Harness(PrintSink(name="show"), pickled=False).process(1, Silent(), 2)

    assert (caught.value.operator, caught.value.record_preview) == ("show", "<Silent>")


def test_print_to_a_closed_output_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(32, "Broken pipe")

    closed = io.StringIO()
    closed.close()
    for stream in (Broken(), closed):
        monkeypatch.setattr(sys, "stdout", stream)
        with pytest.raises(FlowletError, match=r"operator 'show' \(subtask 1\) cannot write to standard output: "):
            Harness(PrintSink(name="show"), subtask=1).process(1)


def test_discard_takes_everything_and_gives_nothing() -> None:
    harness = Harness(DiscardSink())

    harness.process(1, 2)
    harness.operator.finish()

    assert harness.output.elements == []


class Collecting:
    def __init__(self) -> None:
        self.values: list[Any] = []

    def invoke(self, value: Any) -> None:
        self.values.append(1 / value)


@pytest.mark.parametrize("make", [lambda sink: sink, lambda sink: sink.invoke], ids=["object", "callable"])
def test_a_function_sink_gets_every_record(make: Any) -> None:
    sink = Collecting()
    harness = Harness(FunctionSink(make(sink)), pickled=False)

    harness.process(1, 2)
    with pytest.raises(UserFunctionError) as caught:
        harness.process(4, 0, 5)

    assert sink.values == [1, 0.5, 0.25]
    assert caught.value.record_preview == "0"


def test_a_sink_passes_no_records_on() -> None:
    harness = Harness(FunctionSink(len))

    harness.operator.process_chunk(Chunk(["a"]))

    assert harness.output.elements == []
