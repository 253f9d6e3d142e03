import traceback
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.fusing import bytecode_walk
from flowlet.fusing.bytecode import instructions_of
from flowlet.fusing.generated import GeneratedFunction, failed_call
from flowlet.fusing.inlining import inline_expression
from flowlet.fusing.unchanging import is_unchanging
from tests.flowlet.fusing.spies import Journal, Spy, describe

PARAMETERS = ("a", "b")
BINARY = ("+", "-", "*", "/", "//", "%", "@", "&", "|", "^", "<<", ">>")
COMPARISONS = ("<", "<=", "==", "!=", ">", ">=", "in", "not in", "is", "is not")
CONSTANTS = [
    "0",
    "1",
    "-1",
    "300",
    str(2**70),
    "1.5",
    "-0.0",
    "1e999",
    "'x'",
    "'{}'",
    "b'x'",
    "None",
    "True",
    "...",
    "(1, 'x')",
    "(1, (2, ))",
]


def sources(depth: int = 3) -> st.SearchStrategy[str]:
    """Text of expressions of a and b."""
    leaf = st.sampled_from([*PARAMETERS * 4, *map("({})".format, CONSTANTS)])
    return st.recursive(leaf, _larger, max_leaves=2**depth)


def _larger(part: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    def joined(pattern: str, *parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        return st.tuples(*parts).map(lambda given: pattern.format(*given))

    return st.one_of(
        joined("({} {} {})", part, st.sampled_from(BINARY + COMPARISONS), part),
        joined("({}[{}])", part, part),
        joined("({}[{}:{}])", part, part, part),
        joined("({}[{}::{}])", part, part, part),
        joined("({}.real)", part),
        joined("({} {} {})", part, st.sampled_from(["and", "or"]), part),
        joined("({} if {} else {})", part, part, part),
        joined("({} if {} {} {} else {})", part, part, st.sampled_from(["and", "or"]), part, part),
        joined("({} {} {} {} {})", part, st.sampled_from(COMPARISONS), part, st.sampled_from(COMPARISONS), part),
        joined("({}{})", st.sampled_from(["-", "+", "~", "not "]), part),
        joined("({}, {})", part, part),
        joined("[{}, {}]", part, part),
        joined("{{{}, {}}}", part, part),
        joined("{{{}: {}, {}: {}}}", part, part, part, part),
        joined("{{'k': {}, 0: {}}}", part, part),
        joined('f"{{{}!r}} and {{{}:>{{{}}}}}"', *[st.sampled_from(PARAMETERS)] * 3),
        joined("({}\n  + {})", part, part),
    )


def function_of(source: str) -> Callable[..., Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # a user's program may be warned about
        function: Callable[..., Any] = eval(compile(f"lambda a, b: (\n {source}\n)", "<user>", "eval"))
    return function


def inlined(function: Callable[..., Any], *, num_arguments: int = 2) -> Callable[..., Any] | None:
    """A function around the expression; None if there is none."""
    if inline_expression(function, num_arguments) is None:
        return None
    generated = GeneratedFunction("test")
    arguments = ["x", "y"][:num_arguments]
    return generated.define(f"def run({', '.join(arguments)}): return {generated.call(function, *arguments)}")


def outcome(function: Callable[..., Any], arguments: Sequence[Any]) -> tuple[str, list[Any]]:
    """The result or the exception; and the user's lines in its traceback."""
    try:
        return describe(function(*arguments)), []
    except Exception as error:  # noqa: BLE001 - compared
        failed_call(error)
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<user>"]
        return f"{type(error).__name__}: {error}", [(frame.name, frame.lineno, frame.line) for frame in frames]


@given(source=sources(), fail_at=st.integers(-1, 12))
def test_an_expression_does_what_a_call_does(source: str, fail_at: int) -> None:
    """The same operations in the same order, the same result or exception; and a traceback with the same lines of the user's."""
    function = function_of(source)
    expression = inlined(function)
    if expression is None:
        return
    journals = Journal(fail_at), Journal(fail_at)

    expected, found = (
        outcome(each, [Spy(journal, "a"), Spy(journal, "b")]) for each, journal in zip((function, expression), journals, strict=True)
    )

    assert found == expected
    assert journals[1].entries == journals[0].entries


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.integers() | st.floats() | st.text(max_size=3) | st.binary(max_size=3),
    lambda value: st.tuples(value, value),
    max_leaves=4,
)


@given(source=sources(), first=VALUES, second=VALUES)
def test_an_expression_of_plain_values_is_the_same_to_the_bit(source: str, first: Any, second: Any) -> None:
    """Also 0 and -0.0, True and 1, NaN; and what cannot change is made only of what cannot change, if the expression says so."""
    if any(operation in source for operation in ("<<", "*")):
        return  # they may ask for more memory than there is
    function = function_of(source)
    expression = inlined(function)
    if expression is None:
        return

    assert outcome(expression, (first, second)) == outcome(function, (first, second))

    facts = inline_expression(function, 2)
    assert facts is not None
    if facts.keeps_unchanging and not outcome(function, (first, second))[1]:
        assert is_unchanging(function(first, second))


class Holder:
    factor = 3

    def map(self, record: Any) -> Any:
        return record[0] * self.factor

    @classmethod
    def of_class(cls, record: Any) -> Any:
        return record, cls.factor

    @staticmethod
    def static(record: Any) -> Any:
        return -record


def documented(record: Any) -> Any:
    """Nothing but one expression."""
    return record[1], record[0]


def branching(record: Any) -> Any:
    if record is None:
        return "none"
    if record > 0:
        return "positive"
    return "other"


def two_defaults(record: Any, first: Any = "x", second: Any = (1, 2)) -> Any:
    return record, first, second


def compares_identity(record: Any) -> Any:
    return record is True or record is not None


RECOGNISED: list[tuple[Any, list[Any]]] = [
    (lambda r: r, [1, [2]]),
    (lambda r: 5, [1]),
    (lambda r: r[0], [(1, 2), "ab", {0: "x"}]),
    (lambda r: (r[0], r[1] + 1), [(1, 2)]),
    (lambda r: r[1] > 0 and r[0] != "x", [("x", 1), ("y", 0), ("y", 2)]),
    (lambda r: (r[0] and r[1]) or r[2], [(0, 1, 2), (1, 0, 3), (1, 2, 3)]),
    (lambda r: 0 < r < 10, [-1, 0, 5, 10, 11]),
    (lambda r: "small" if r < 1 else "middle" if r < 2 else "large", [0, 1, 2]),
    (lambda r: r if r is None else -r, [None, 3]),
    (lambda r: "none" if r is not None else r, [None, 3]),
    (lambda r: f"{r[0]!r:>{r[1]}} x {{{r[0]}}}", [("a", 5)]),
    (lambda r: "%s:%d" % (r, 3), ["a"]),  # noqa: UP031 - compiled like an f-string
    (lambda r: {"a": r, "b": 2}, [1]),
    (lambda r: [r, {r}, {r: 1}], [1]),
    (lambda r: r[1:-1] + r[::2], ["abcd", [1, 2, 3]]),
    (lambda r: r.real + r.imag, [3, 2.5]),
    (lambda r, k=1: r[k], [(1, 2)]),
    (lambda r: r in (1, 2), [1, 3]),
    (lambda r: not r, [1, 0]),
    (lambda r: (r[0], "yes" if r[1] else "no", r[0]), [(1, 0), (1, 1)]),
    (lambda r: [r[0], r[1] or 7, r[0] and r[1]], [(1, 0), (0, 1), (1, 1)]),
    (lambda r: (r[0], "both" if r[0] and r[1] else "no", 1), [(0, 1), (1, 0), (1, 1)]),
    (lambda r: not (r and r[0]), [(), (0,), (1,)]),
    (lambda r: r[0] < r[1] < r[2], [(1, 2, 3), (1, 1, 3), (1, 2, 2)]),
    (lambda r: (r[0], 0 <= r[1] < 10 != r[0]), [(10, 1), (1, 1), (1, 11), (1, -1)]),
    (lambda r: r[0] < r[1] < (r[2] == r[3]), [(-2, 0, 1, 1), (-2, 0, 1, 2), (1, 0, 0, 0)]),
    (lambda r: r[0] < (r[1] if r[2] else r[3]) < 10, [(1, 2, 0, 1), (1, 2, 1, 1)]),
    (lambda r: (r[0] if r[1] is None else r[1] if r[2] else -r[2]) + 1, [(1, None, 0), (1, 2, 0), (1, 2, 3)]),
    (documented, [(1, 2)]),
    (branching, [None, 1, 0]),
    (two_defaults, [1]),
    (compares_identity, [True, 1, None]),
    (Holder().map, [(1,), ("ab",)]),
    (Holder.of_class, [1]),
    (Holder.static, [1]),
]


@pytest.mark.parametrize(("function", "records"), RECOGNISED)
def test_what_is_one_expression_is_inlined(function: Any, records: list[Any]) -> None:
    """Functions, bound methods, defaults, early returns."""
    expression = inlined(function, num_arguments=1)

    assert expression is not None
    for record in records:
        assert describe(expression(record)) == describe(function(record))


def generator(record: Any) -> Any:
    yield record


async def coroutine(record: Any) -> Any:
    return record


def assigning(record: Any) -> Any:
    found = record[0]
    return found  # noqa: RET504 - that is the point


def asserting(record: Any) -> Any:
    assert record
    return record


def looping(record: Any) -> Any:
    while record:
        record -= 1
    return record


def raising(record: Any) -> Any:
    raise ValueError(record)


def deleting(record: Any) -> None:
    del record[0]


def catching(record: Any) -> Any:
    try:
        return 1 // record
    except ZeroDivisionError:
        return None


def catching_in_the_end(record: Any) -> Any:
    try:
        return record[0]
    finally:
        print(record)


def closing_over(index: int) -> Any:
    return lambda record: record[index]


GLOBAL = 1
with warnings.catch_warnings():
    warnings.simplefilter("ignore", SyntaxWarning)
    WARNED = [
        eval("lambda r: r is 0"),
        eval("lambda r: 1 is not r"),
        eval("lambda r: r is 'x'"),
        eval("lambda r: (1 + (2 if r or r else 3))[0]"),
    ]
LONG = eval("lambda r: " + " + ".join(["r"] * 200))
WIDE = eval("lambda r: r if " + " and ".join(f"(r[{i}] or r[{i + 1}])" for i in range(20)) + " else 0")
CALLED: list[Any] = [
    *(generator, coroutine, assigning, asserting, looping, raising, deleting, catching, catching_in_the_end, closing_over(0)),
    *(LONG, WIDE, *WARNED),
    *(lambda r: r.lower(), lambda r: len(r), lambda r: r[GLOBAL], lambda r: [each[0] for each in r], lambda r: (yield r)),
    *(lambda r: (x := r[0]) + x, lambda r: lambda: r),
    *(lambda r: (*r, 1), lambda r: [1, 2, 3, r[0]][:2], lambda r: ("a", r)[0], lambda r: "abc"[r], lambda r: [*r]),
    *(lambda *r: r, lambda **r: r, lambda r, *, k=1: r, lambda: 1, lambda r, s: r, lambda r, k: r),
    *(len, str, itemgetter(0), partial(documented, 1), Holder, Holder(), "".join, None, "r"),
]


@pytest.mark.parametrize("function", CALLED)
def test_anything_else_is_called(function: Any) -> None:
    """Calls, loops, assignments, caught exceptions, globals, free variables, other callables; what would be evaluated in another order."""
    assert inline_expression(function) is None


@given(source=sources(), swaps=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=4), length=st.integers(0, 40))
def test_whatever_the_instructions_the_answer_is_an_expression_or_none(source: str, swaps: list[tuple[int, int]], length: int) -> None:
    """No compiler makes such code; that of another version might."""
    function = function_of(source)
    instructions = instructions_of(function.__code__)
    for one, other in swaps:
        first, second = one % len(instructions), other % len(instructions)
        instructions[first], instructions[second] = instructions[second], instructions[first]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bytecode_walk, "instructions_of", lambda _: instructions[: length or None])
        found = inline_expression(function, 2)

    assert found is None or found.num_arguments == 2


def test_the_very_constants_are_used() -> None:
    """Whatever is no literal is the object that the function has."""
    marker = object()
    expression = inlined(eval("lambda r, m=m: (m, r)", {"m": marker}), num_arguments=1)

    assert expression is not None
    assert expression(1)[0] is marker


@pytest.mark.parametrize(
    ("function", "keeps"),
    [
        (lambda r: (r[0], r[1] + 1), True),
        (lambda r: r, True),
        (lambda r: f"{r}", True),
        (lambda r: "a" if r else (1, 2), True),
        (lambda r: [r], False),
        (lambda r: {r}, False),
        (lambda r: {r: 1}, False),
        (lambda r: {"k": r}, False),
        (lambda r: r.attribute, False),
        (lambda r, k=[]: k, False),
        (Holder().map, False),
    ],
)
def test_an_expression_says_whether_it_can_make_something_that_changes(function: Any, keeps: bool) -> None:
    """Of arguments that cannot change."""
    expression = inline_expression(function)

    assert expression is not None
    assert expression.keeps_unchanging is keeps
