import traceback
from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest

from flowlet.fusing import inlined_map
from flowlet.fusing.generated import GeneratedFunction
from flowlet.fusing.inlined_map import InlinedMap, is_same_function
from flowlet.fusing.switch import FUSE_VARIABLE


@pytest.fixture(autouse=True, params=["1", "0"])
def switch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without inlining: nobody can tell."""
    monkeypatch.setenv(FUSE_VARIABLE, request.param)
    monkeypatch.setattr(inlined_map, "is_traced", lambda: False)  # coverage traces


def called(record: Any) -> Any:
    return len(record)


class Selector:
    def get_key(self, record: Any) -> Any:
        return record[0]

    def other(self, record: Any) -> Any:
        return record[1]


FUNCTIONS: list[Callable[[Any], Any]] = [called, lambda r: r[0], lambda r: (r[1], r[0]), Selector().get_key, max]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_function_is_applied_to_each_record(function: Callable[[Any], Any]) -> None:
    records = [(1, 2), (4, 3)]

    assert InlinedMap().results(function, iter(records)) == [function(record) for record in records]


@pytest.mark.parametrize("function", [*FUNCTIONS[:4]])
def test_the_iterator_stands_behind_the_record_that_failed(function: Callable[[Any], Any]) -> None:
    """And the traceback ends in the user's line."""
    records = iter([(1, 2), 3, (4, 5)])

    with pytest.raises(TypeError) as caught:
        InlinedMap().results(function, records)

    assert list(records) == [(4, 5)]
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (last.filename, last.name) == (__file__, function.__name__)


def test_another_function_is_another_map() -> None:
    """However often."""
    functions = [eval(f"lambda r: r + {number}") for number in range(3)]
    applied = InlinedMap()

    assert [applied.results(functions[number % 3], iter([10])) for number in range(9)] == [[10], [11], [12]] * 3


def test_not_every_function_gets_a_loop_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Generating one takes longer than a few calls."""
    defined = []

    class Counted(GeneratedFunction):
        def define(self, text: str, *, blamed: str | None = None) -> Callable[..., Any]:
            defined.append(text)
            return super().define(text, blamed=blamed)

    monkeypatch.setattr(inlined_map, "GeneratedFunction", Counted)
    applied = InlinedMap()

    for number in range(20):
        assert applied.results(eval(f"lambda r: r + {number}"), iter([1])) == [1 + number]

    assert len(defined) in (0, 4)


def test_who_traces_sees_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function is inlined only while nobody follows its lines."""
    selector = lambda r: r[0]  # noqa: E731 - one expression
    applied = InlinedMap()
    applied.results(selector, iter([]))
    monkeypatch.setattr(inlined_map, "is_traced", lambda: True)

    with pytest.raises(TypeError) as caught:
        applied.results(selector, iter([1]))

    assert "<generated" not in "".join(traceback.format_tb(caught.value.__traceback__))


def test_a_new_map_can_be_pickled() -> None:
    assert cloudpickle.loads(cloudpickle.dumps(InlinedMap())).results(lambda r: r[0], iter([(1,)])) == [1]


def test_methods_are_the_same_if_function_and_object_are() -> None:
    selector, other = Selector(), Selector()

    assert is_same_function(selector.get_key, selector.get_key)
    assert not is_same_function(selector.get_key, other.get_key)
    assert not is_same_function(selector.get_key, selector.other)
    assert is_same_function(called, called)
    assert not is_same_function(called, len)
