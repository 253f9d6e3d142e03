import io
import sys

import pytest

from flowlet.chain.operator_chain import ChainedOperator, OperatorChain
from flowlet.chain.stream_operator import OperatorContext
from flowlet.errors import ClosedOutputError, UserFunctionError
from flowlet.operators.process_operator import MapOperator
from flowlet.records import Chunk
from flowlet.sinks.function_sink import DiscardSink, PrintSink
from tests.flowlet.operators.harness import Harness

PREFIXES = [(None, 1, 0, ""), ("", 1, 0, ""), ("out", 1, 0, "out> "), (None, 4, 2, "3> "), ("out", 4, 0, "out:1> ")]


@pytest.mark.parametrize(("identifier", "parallelism", "subtask", "prefix"), PREFIXES)
def test_print_writes_lines_with_flinks_prefix(
    identifier: str | None, parallelism: int, subtask: int, prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    harness = Harness(PrintSink(identifier), parallelism=parallelism, subtask=subtask)

    harness.process(("a", 1), "text", None)

    assert capsys.readouterr().out == f"{prefix}('a', 1)\n{prefix}text\n{prefix}None\n"


class FlushedStream(io.TextIOWrapper):
    """A stream that remembers the file's content after each flush that had something to write."""

    def __init__(self, raw: io.BytesIO) -> None:
        super().__init__(raw, encoding="utf-8", newline="\n")
        self.raw_file = raw
        self.flushed: list[bytes] = []

    def flush(self) -> None:
        super().flush()
        if self.raw_file.getvalue() not in (b"", *self.flushed[-1:]):
            self.flushed.append(self.raw_file.getvalue())


def test_printed_lines_appear_at_the_end_of_their_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    stream = FlushedStream(raw)
    monkeypatch.setattr(sys, "stdout", stream)
    harness = Harness(PrintSink())

    harness.process(*range(100))
    harness.process("more")

    lines = b"".join(b"%d\n" % number for number in range(100))
    assert stream.flushed == [lines, lines + b"more\n"]


def test_a_line_is_never_cut_by_a_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of several tasks in one process do not mix, however many a chunk has."""
    raw = io.BytesIO()
    stream = FlushedStream(raw)
    monkeypatch.setattr(sys, "stdout", stream)

    Harness(PrintSink("x" * 100)).process(*range(1_000))

    assert len(stream.flushed) > 10
    assert all(flushed.endswith(b"\n") for flushed in stream.flushed)
    assert raw.getvalue().count(b"\n") == 1_000


def test_what_functions_print_stands_between_the_printed_records(capsys: pytest.CaptureFixture[str]) -> None:
    def announce(value: int) -> int:
        print("mapping", value)
        return value

    operators = [MapOperator(announce), PrintSink()]
    chain = OperatorChain(
        [ChainedOperator(operator, index - 1) for index, operator in enumerate(operators)],
        {},
        lambda index, name: OperatorContext("task", 0, 1, 128, name),
    )
    chain.open()

    chain.process_chunk(Chunk([1, 2]))

    assert capsys.readouterr().out == "mapping 1\n1\nmapping 2\n2\n"


@pytest.mark.parametrize(("encoding", "expected"), [("ascii", rb"\xe9 \ud83d"), ("utf-8", b"\xc3\xa9 \\ud83d")])
def test_print_escapes_what_the_terminal_cannot_show(
    encoding: str, expected: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        with pytest.raises(
            ClosedOutputError, match=r"operator 'show' \(subtask 1\) cannot write to standard output: it"
        ):
            Harness(PrintSink(name="show"), subtask=1).process(1)
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(
        ClosedOutputError, match=r"cannot write to standard output: it is closed; start the program with one"
    ):
        Harness(PrintSink(name="show"))


def test_discard_takes_everything_and_gives_nothing() -> None:
    harness = Harness(DiscardSink())

    harness.process(1, 2)
    harness.operator.finish()

    assert harness.output.elements == []
