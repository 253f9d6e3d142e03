import linecache
import traceback
from types import CodeType
from typing import Any

import pytest

from flowlet.fusing.generated import FailedCall, GeneratedFunction, failed_call
from flowlet.tm.failure import _is_engine_file


def ratio(pair: Any) -> Any:
    return (
        pair[0]
        / pair[1]
    )  # fmt: skip


def checked(value: Any) -> Any:
    if value > 100:
        raise KeyError("large")
    return value


class Failing:
    def __getitem__(self, index: int) -> Any:
        raise OSError(f"field {index}")


def chain() -> Any:
    generated = GeneratedFunction("ratios")
    first, second = generated.call(ratio, "v0", label="first"), generated.call(checked, "v1", label="second")
    return generated.define(
        f"""
        def run(records):
            return [
                {second}
                for v0 in records
                for v1 in [{first}]
            ]
        """
    )


def failure_of(record: Any) -> tuple[FailedCall | None, Exception]:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - any
        chain()([(1, 2), record, (3, 4)])
    return failed_call(caught.value), caught.value


def users_frames(error: BaseException) -> list[traceback.FrameSummary]:
    return [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_engine_file(frame.filename)][1:]


def test_calls_are_filled_in() -> None:
    """One is inlined, the other called."""
    assert chain()([(1, 2), (300, 4)]) == [0.5, 75]


@pytest.mark.parametrize(
    ("record", "expected"),
    [((1, 0), FailedCall("first", ((1, 0),))), ((1, None), FailedCall("first", ((1, None),))), ((303, 3), FailedCall("second", (101.0,)))],
)
def test_the_call_that_failed_is_named_with_what_it_was_given(record: Any, expected: FailedCall) -> None:
    """Whether it was inlined or called."""
    assert failure_of(record)[0] == expected


def test_the_traceback_shows_the_users_line() -> None:
    """File, name, line and columns are those of a call."""
    with pytest.raises(ZeroDivisionError) as of_call:
        ratio((1, 0))

    _, error = failure_of((1, 0))

    (found,), (expected,) = users_frames(error), users_frames(of_call.value)
    assert found.line == expected.line == "pair[0]"
    assert (found.filename, found.name, found.lineno, found.end_lineno) == (__file__, "ratio", expected.lineno, expected.end_lineno)
    assert (found.colno, found.end_colno) == (expected.colno, expected.end_colno)


def test_frames_below_the_users_line_stay() -> None:
    """A method of the record that an operator called."""
    record = Failing()

    failed, error = failure_of(record)

    assert failed == FailedCall("first", (record,))
    assert [frame.name for frame in users_frames(error)] == ["ratio", "__getitem__"]


def test_a_call_that_fails_keeps_its_traceback() -> None:
    _, error = failure_of((303, 3))

    assert [(frame.name, frame.line) for frame in users_frames(error)] == [("checked", 'raise KeyError("large")')]


def test_generated_lines_can_be_read() -> None:
    """In the traceback, from linecache, with what stands in place of the calls; the file lies among the engine's."""
    _, error = failure_of((1, 0))

    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "<generated" in frame.filename]

    assert [frame.line for frame in frames] == ["return [", "for v1 in [v0[0] / v0[1]]"]
    assert linecache.getline(frames[0].filename, 1) == "# ratios\n"
    assert all(_is_engine_file(frame.filename) for frame in frames)


def test_an_expression_that_has_no_text_runs_and_is_shown_as_a_call() -> None:
    """Python makes an f-string of it, which cannot be written with a backslash inside."""

    def quoted(pair: Any) -> str:
        return "%s" % (pair[0] + "\\",)  # noqa: UP031 - becomes an f-string

    generated = GeneratedFunction("lines")
    run = generated.define(f"def run(records): return [{generated.call(quoted, 'record')} for record in records]")

    assert run([("a", 1), ("b", 2)]) == ["a\\", "b\\"]
    path = run.__code__.co_filename
    assert linecache.getline(path, 2, run.__globals__).strip() == "def run(records): return [quoted(record) for record in records]"


def test_other_failures_are_nobodys() -> None:
    """Of the text itself, and of anything else: their tracebacks are left alone."""
    run = GeneratedFunction("nothing").define("def run(records): return records[0]")
    with pytest.raises(IndexError) as caught:
        run([])
    before = traceback.extract_tb(caught.value.__traceback__)

    assert failed_call(caught.value) is None
    assert traceback.extract_tb(caught.value.__traceback__) == before
    assert failed_call(ValueError("without a traceback")) is None


def test_the_very_objects_are_used() -> None:
    """Values that the text needs have names in it."""
    marker: list[Any] = []
    generated = GeneratedFunction("marker")

    run = generated.define(f"def run(): return {generated.value(marker)}")

    assert run() is marker


def test_a_call_may_stand_in_several_places() -> None:
    generated = GeneratedFunction("twice")
    call = generated.call(ratio, "x")

    run = generated.define(f"def run(x): return {call} + {call}")

    assert run((1, 2)) == 1


def without_columns(code: CodeType) -> CodeType:
    """As PYTHONNODEBUGRANGES makes it: entries of the location table of kind 13, for up to eight instructions each."""
    lines = list(dict.fromkeys(line for _, _, line in code.co_lines() if line is not None))
    sizes = [min(8, len(code.co_code) // 2 - start) for start in range(0, len(code.co_code) // 2, 8)]
    deltas = [2 * (lines[-1] - code.co_firstlineno), *[0] * (len(sizes) - 1)]
    table = b"".join(bytes([0x80 | 13 << 3 | size - 1, delta]) for size, delta in zip(sizes, deltas, strict=True))
    return code.replace(co_linetable=table)


def test_without_columns_the_line_tells_the_call() -> None:
    """Then the traceback shows the line of the whole expression."""
    generated = GeneratedFunction("lines")
    run: Any = generated.define(f"def run(pair):\n    return {generated.call(ratio, 'pair', label='only')}")
    run.__code__ = without_columns(run.__code__)

    with pytest.raises(ZeroDivisionError) as caught:
        run((1, 0))

    assert failed_call(caught.value) == FailedCall("only", ((1, 0),))
    assert [frame.name for frame in users_frames(caught.value)] == ["ratio"]
