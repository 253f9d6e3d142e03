"""Functions of one record: ``map``, ``filter``, ``flat_map``, and selectors of keys.

Invariants: every function takes records of any type; what it does depends on what it was called with before, on the
            world's cells and on nothing else.
"""

from collections.abc import Iterator
from typing import Any, ClassVar

from flowlet.datastream.functions import FilterFunction, FlatMapFunction, MapFunction
from tests.differential.worlds import Box, Failing, Label, Logged, Point, WithCell, size, touch


class _Map(Logged, MapFunction):
    def map(self, value: Any) -> Any:
        self.calls += 1
        self.see(value)
        return self.result(value)


class Identity(_Map):
    def result(self, value: Any) -> Any:
        return value


class Touch(_Map):
    def result(self, value: Any) -> Any:
        touch(value)
        return value


class GrowingList(_Map):
    def result(self, value: Any) -> Any:
        self.found.append(size(value))
        return self.found


class KeepAll(_Map):
    """Returns one list that grows and holds the records themselves."""

    def result(self, value: Any) -> Any:
        self.found.append(value)
        del self.found[:-3]
        return self.found


class OneDict(_Map):
    def result(self, value: Any) -> Any:
        self.entries["n"] = self.calls
        self.entries["k"] = size(value)
        return self.entries


class OnePoint(_Map):
    def prepare(self) -> None:
        self.point = Point(0)

    def result(self, value: Any) -> Any:
        self.point.n = size(value)
        return self.point


class TouchTheLast(_Map):
    """Keeps each record and changes it when the next one comes."""

    def result(self, value: Any) -> Any:
        touch(self.last)
        self.last = value
        return value


class TouchTheLastOfAll(WithCell, _Map):
    """Touches the last record, as ``TouchTheLast`` does, but keeps it in a variable that other functions of the task
    use, too.
    """

    def result(self, value: Any) -> Any:
        touch(self.cells.get(self.cell))
        self.cells[self.cell] = value
        return value


class ReturnTheLast(_Map):
    def result(self, value: Any) -> Any:
        last, self.last = self.last, value
        return last


class WriteCell(WithCell, _Map):
    """Counts in a variable that other functions of the task read."""

    def result(self, value: Any) -> Any:
        self.cells[self.cell] = self.calls
        return value


class ReadCell(WithCell, _Map):
    def result(self, value: Any) -> Any:
        return (self.cells.get(self.cell), value)


class TouchCell(WithCell, _Map):
    def result(self, value: Any) -> Any:
        touch(self.cells.get(self.cell))
        return value


class Twins(_Map):
    def result(self, value: Any) -> Any:
        return [value, value]


class Boxed(_Map):
    def result(self, value: Any) -> Any:
        return Box(value)


class WithCount(_Map):
    def result(self, value: Any) -> Any:
        return (self.calls, value)


class Pair(_Map):
    def result(self, value: Any) -> Any:
        return (size(value) % 3, self.calls)


class Triple(_Map):
    def result(self, value: Any) -> Any:
        return ("abc"[size(value) % 3], self.calls, [size(value)])


class Entry(_Map):
    def result(self, value: Any) -> Any:
        return {"k": size(value) % 3, "v": value}


class Dot(_Map):
    def result(self, value: Any) -> Any:
        return Point(size(value) % 3, [self.calls])


class Small(_Map):
    def result(self, value: Any) -> Any:
        return size(value)


class MixedTypes(_Map):
    """Results of one type after the other, equal ones among them."""

    RESULTS: ClassVar[tuple[Any, ...]] = (
        1,
        True,
        1.0,
        None,
        "1",
        (1,),
        (True,),
        (1.0,),
        2**70,
        -0.0,
        b"1",
        Label("a", 1),
        (1, "a"),
        (2, None),
    )

    def result(self, value: Any) -> Any:
        return self.RESULTS[(self.calls + size(value)) % len(self.RESULTS)]


class MapFails(Failing, _Map):
    """Fails at a call, after it has changed the record."""

    def result(self, value: Any) -> Any:
        self.fail_in("map", value)
        return value


class _Filter(Logged, FilterFunction):
    def filter(self, value: Any) -> bool:
        self.calls += 1
        self.see(value)
        return bool(self.result(value))


class EveryOther(_Filter):
    def result(self, value: Any) -> bool:
        return self.calls % 2 == 1


class TouchAll(_Filter):
    def result(self, value: Any) -> bool:
        touch(value)
        return True


class SomeSizes(_Filter):
    def result(self, value: Any) -> bool:
        return size(value) != 1


class EvenCell(WithCell, _Filter):
    def result(self, value: Any) -> bool:
        found = self.cells.get(self.cell)
        return not isinstance(found, int) or found % 2 == 0


class FilterFails(Failing, _Filter):
    def result(self, value: Any) -> bool:
        self.fail_in("filter")
        return True


class _FlatMap(Logged, FlatMapFunction):
    def flat_map(self, value: Any) -> Any:
        self.calls += 1
        self.see(value)
        return self.result(value)


class TwiceInAList(_FlatMap):
    def result(self, value: Any) -> Any:
        return [value, value]


class TupleOfTwo(_FlatMap):
    def result(self, value: Any) -> Any:
        return (value, self.calls)


class SometimesNone(_FlatMap):
    def result(self, value: Any) -> Any:
        return () if self.calls % 3 == 0 else [value]


class YieldOneDict(_FlatMap):
    def result(self, value: Any) -> Iterator[Any]:
        found: dict[str, Any] = {"k": size(value)}
        for number in range(3):
            found["n"] = number
            yield found
            self.see("resumed", number, found)


class YieldGrowing(_FlatMap):
    def result(self, value: Any) -> Iterator[Any]:
        numbers: list[int] = []
        for number in range(3):
            numbers.append(number)
            yield numbers


class YieldTouchYield(_FlatMap):
    """Changes what it has yielded, and yields it again."""

    def result(self, value: Any) -> Iterator[Any]:
        yield value
        self.see("resumed", value)
        touch(value)
        yield value
        touch(value)


class YieldKept(_FlatMap):
    """Yields what it has kept of the records before."""

    def result(self, value: Any) -> Iterator[Any]:
        self.found = [*self.found[-1:], value]
        yield from self.found
        touch(self.found[0])


class YieldWithCell(WithCell, _FlatMap):
    """Sets a variable before each result, which the functions behind it read."""

    def result(self, value: Any) -> Iterator[Any]:
        for number in range(2):
            self.cells[self.cell] = (self.calls, number)
            yield value


class YieldThenFail(Failing, _FlatMap):
    def result(self, value: Any) -> Iterator[Any]:
        yield value
        self.fail_in("flat_map")
        yield self.calls


class ReturnOrFail(Failing, _FlatMap):
    def result(self, value: Any) -> Any:
        self.fail_in("flat_map")
        return [value]


# ---------------------------------------------------------------- selectors of keys: nothing is logged, as nobody says
# how often one is called


def by_size(record: Any) -> int:
    return size(record) % 3


def by_type(record: Any) -> str:
    return type(record).__name__


def first_field(record: Any) -> Any:
    return record[0]


def k_field(record: Any) -> Any:
    return record["k"]


def n_attribute(record: Any) -> int:
    n: int = record.n
    return n


def constant(record: Any) -> int:
    return 0
