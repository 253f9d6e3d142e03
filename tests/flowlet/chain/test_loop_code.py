import traceback
from collections.abc import Callable
from typing import Any

import pytest

from flowlet.chain.loop_code import Blame, LoopCode, failure_of
from flowlet.errors import FlowletError, TaskCancelled, UserFunctionError


def code_of(title: str = "test") -> LoopCode:
    return LoopCode(title, lambda: None)


def refuse(value: Any) -> Any:
    raise ValueError(f"no {value}")


def failure(function: Callable[..., Any], *args: Any) -> BaseException:
    """Return the error that a call of the function raises, as a loop raises it."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - looked at by the caller
        function(*args)
    return failure_of(caught.value)


def test_a_function_does_what_was_written() -> None:
    code = code_of()
    results: list[int] = []
    with code.block("for v in records:"):
        with code.block("if v % 2:"):
            code.line(f"{code.bind(results, 'results')}.append(v)")
        with code.block("else:"):
            code.line(f"{code.bind(results, 'results')}.append(-v)")

    code.define("records")([1, 2, 3])

    assert results == [1, -2, 3]


def test_an_empty_function_does_nothing() -> None:
    code_of().define("records")([1])


def test_statements_at_start_and_end_stand_around_the_loop() -> None:
    """Statements stand in the order in which they were written."""
    code = code_of()
    log: list[Any] = []
    note = code.bind(log.append, "note")
    code.at_end(f"{note}('end')")
    code.at_start(f"{note}('start')")
    with code.block("for v in records:"):
        code.line(f"{note}(v)")
        code.at_start(f"{note}('second start')")
        code.at_end(f"{note}('second end')")

    code.define("records")([1, 2])

    assert log == ["start", "second start", 1, 2, "end", "second end"]


@pytest.mark.parametrize("error", [ValueError("no"), TaskCancelled("stop")], ids=repr)
def test_statements_at_the_end_run_when_the_loop_fails(error: BaseException) -> None:
    code = code_of()
    log: list[Any] = []

    def fail() -> None:
        raise error

    code.line(f"{code.bind(fail, 'fail')}()")
    code.at_end(f"{code.bind(log.append, 'note')}('end')")

    with pytest.raises(type(error)):
        code.define("")()

    assert log == ["end"]


def test_a_value_has_one_name_and_two_values_have_two() -> None:
    """Equal values are two values, too."""
    code = code_of()
    first: list[Any] = []
    second: list[Any] = []

    names = [code.bind(first, "list"), code.bind(second, "list"), code.bind(first, "other")]

    assert names[0] == names[2] != names[1]


def test_no_variable_is_given_twice() -> None:
    code = code_of()
    names = [code.variable("v"), code.variable("v"), code.variable("t")]

    assert len(set(names)) == 3
    assert all(name.isidentifier() for name in names)


def test_a_variable_is_shared_until_the_outermost_block_that_says_so_ends() -> None:
    code = code_of()
    with code.sharing("v"):
        with code.sharing("v"), code.sharing("w", is_shared=False):
            assert code.is_shared("v")
            assert not code.is_shared("w")
        assert code.is_shared("v"), "the outer reader is still to come"
        with code.sharing("v", is_shared=False):
            assert code.is_shared("v"), "who reads no more himself does not speak for others"

    assert not code.is_shared("v")


def test_blocks_are_counted_while_they_are_open() -> None:
    code = code_of()
    with code.block("if True:"), code.block("if True:"):
        assert code.num_blocks == 2
        code.line("pass")

    assert code.num_blocks == 0


@pytest.mark.parametrize("title", ["a\nraise OSError", "a\r\nb", "ü 水 \ud83d", '\'"""', "\x0c\x85\u2028b"], ids=ascii)
def test_a_title_of_several_lines_is_one_comment(title: str) -> None:
    """An operator's name is the user's, and no code."""
    code = code_of(title)
    code.line(f"{code.bind(refuse, 'refuse')}(v)", Blame(title, 0, "v"))

    found = failure(code.define("v"), 7)

    assert isinstance(found, UserFunctionError)
    assert found.record_preview == "7"


def test_an_error_is_the_operators_on_whose_line_it_is() -> None:
    code = code_of()
    code.line(f"a = {code.bind(abs, 'first')}(v)", Blame("first", 3, "v"))
    code.line(f"b = {code.bind(refuse, 'second')}(a)", Blame("second", 3, "a"))

    found = failure(code.define("v"), -2)

    assert isinstance(found, UserFunctionError)
    assert (found.operator, found.subtask, found.record_preview) == ("second", 3, "2")
    assert isinstance(found.__cause__, ValueError)
    assert str(found.__cause__) == "no 2"


def test_the_innermost_loop_is_to_blame() -> None:
    """A user's function may run another loop."""
    inner = code_of("inner")
    inner.line(f"{inner.bind(refuse, 'refuse')}(v)", Blame("inner", 0, "v"))
    outer = code_of("outer")
    outer.line(f"{outer.bind(inner.define('v'), 'run')}(v)", Blame("outer", 0, "v"))

    found = failure(outer.define("v"), 7)

    assert isinstance(found, UserFunctionError)
    assert found.operator == "inner"


def test_an_error_of_a_line_of_ours_is_nobodys_fault() -> None:
    """The error is not the fault of the user's call on the line before, or around it."""
    code = code_of()
    with code.block(f"for v in {code.bind(range, 'flat_map')}(records):", Blame("outer", 0, "records")):
        code.line("w = v", Blame("inner", 0, "v"))
        code.line(f"{code.bind(refuse, 'collect')}(w)")

    found = failure(code.define("records"), 3)

    assert isinstance(found, ValueError)


def test_an_error_that_names_its_operator_already_stays_as_it_is() -> None:
    known = UserFunctionError("key_by", 1, "7")

    def fail(_: Any) -> None:
        raise known

    code = code_of()
    code.line(f"{code.bind(fail, 'fail')}(v)", Blame("map", 0, "v"))

    assert failure(code.define("v"), 1) is known


def test_an_error_of_the_engine_in_a_users_function_is_the_records() -> None:
    """A function that uses its context at the wrong time raises such an error, for example."""

    def fail(_: Any) -> None:
        raise FlowletError("timers need a keyed stream")

    code = code_of()
    code.line(f"{code.bind(fail, 'fail')}(v)", Blame("process", 0, "v"))

    found = failure(code.define("v"), 1)

    assert isinstance(found, UserFunctionError)
    assert isinstance(found.__cause__, FlowletError)


def test_tracebacks_show_the_text() -> None:
    """Python's tracebacks show the lines of a generated loop, and so do debuggers, which look them up alike."""
    code = code_of("Map -> Filter")
    code.line(f"result = {code.bind(refuse, 'map')}(v)", Blame("Map", 0, "v"))

    cause = failure(code.define("v"), 7).__cause__

    assert cause is not None
    lines = [frame.line for frame in traceback.extract_tb(cause.__traceback__) if "generated" in frame.filename]
    assert lines == ["result = map_0(v)"]
    assert "result = map_0(v)" in "".join(traceback.format_exception(cause))


def test_every_function_has_a_text_of_its_own() -> None:
    frames = []
    for name in ("first", "second"):
        code = code_of()
        code.line(f"{code.bind(refuse, name)}(v)", Blame(name, 0, "v"))
        cause = failure(code.define("v"), 7).__cause__
        assert cause is not None
        frames += [frame for frame in traceback.extract_tb(cause.__traceback__) if "generated" in frame.filename]

    assert [frame.line for frame in frames] == ["first_0(v)", "second_0(v)"]
    assert len({frame.filename for frame in frames}) == 2


def test_a_variable_that_was_never_set_is_no_second_error() -> None:
    code = code_of()
    code.line(f"{code.bind(refuse, 'refuse')}(1)", Blame("map", 0, "never_set"))

    found = failure(code.define(""))

    assert isinstance(found, UserFunctionError)
    assert found.record_preview == "None"
