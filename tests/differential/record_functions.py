"""Functions of one record: ``map``, ``filter``, ``flat_map``.

Side:       any.
Invariants: every function takes records of any type; what it does depends on what it was called with before, on the
            world's cells and on nothing else.
"""

from collections.abc import Iterator
from typing import Any, ClassVar

from flowlet.datastream.functions import FilterFunction, FlatMapFunction, MapFunction
from tests.differential.worlds import Boom, Box, Label, Logged, Point, size, touch


class _Map(Logged, MapFunction):
    def map(self, value: Any) -> Any:
        self.calls += 1
        self.see(value)
        return self.result(value)

    def result(self, value: Any) -> Any:
        raise NotImplementedError


class Identity(_Map):
    def result(self, value: Any) -> Any:
        return value


class Touch(_Map):
    """Changes its record in place."""

    def result(self, value: Any) -> Any:
        touch(value)
        return value


class GrowingList(_Map):
    """Returns one list that grows."""

    def prepare(self) -> None:
        self.items: list[Any] = []

    def result(self, value: Any) -> Any:
        self.items.append(size(value))
        return self.items


class KeepAll(_Map):
    """Returns one list that grows and holds the records themselves."""

    def prepare(self) -> None:
        self.items: list[Any] = []

    def result(self, value: Any) -> Any:
        self.items.append(value)
        del self.items[:-3]
        return self.items


class OneDict(_Map):
    """Returns one dict that changes."""

    def prepare(self) -> None:
        self.found: dict[str, Any] = {}

    def result(self, value: Any) -> Any:
        self.found["n"] = self.calls
        self.found["k"] = size(value)
        return self.found


class OnePoint(_Map):
    """Returns one object that changes."""

    def prepare(self) -> None:
        self.point = Point(0)

    def result(self, value: Any) -> Any:
        self.point.n = size(value)
        return self.point


class TouchTheLast(_Map):
    """Keeps each record and changes it when the next one comes."""

    def prepare(self) -> None:
        self.last: Any = None

    def result(self, value: Any) -> Any:
        touch(self.last)
        self.last = value
        return value


class TouchTheLastOfAll(_Map):
    """Touches the last record, as ``TouchTheLast`` does, but keeps it in a variable that other functions of the task
    use, too.
    """

    def prepare(self, cell: str) -> None:
        self.cell = cell

    def result(self, value: Any) -> Any:
        touch(self.cells.get(self.cell))
        self.cells[self.cell] = value
        return value


class ReturnTheLast(_Map):
    """Returns the record before."""

    def prepare(self) -> None:
        self.last: Any = None

    def result(self, value: Any) -> Any:
        last, self.last = self.last, value
        return last


class WriteCell(_Map):
    """Counts in a variable that other functions of the task read."""

    def prepare(self, cell: str) -> None:
        self.cell = cell

    def result(self, value: Any) -> Any:
        self.cells[self.cell] = self.calls
        return value


class ReadCell(_Map):
    """Returns the variable with the record."""

    def prepare(self, cell: str) -> None:
        self.cell = cell

    def result(self, value: Any) -> Any:
        return (self.cells.get(self.cell), value)


class TouchCell(_Map):
    """Changes what the variable holds."""

    def prepare(self, cell: str) -> None:
        self.cell = cell

    def result(self, value: Any) -> Any:
        touch(self.cells.get(self.cell))
        return value


class Twins(_Map):
    """One record twice in a list."""

    def result(self, value: Any) -> Any:
        return [value, value]


class Boxed(_Map):
    def result(self, value: Any) -> Any:
        return Box(value)


class WithCount(_Map):
    def result(self, value: Any) -> Any:
        return (self.calls, value)


class Pair(_Map):
    """A key and a number, which cannot change."""

    def result(self, value: Any) -> Any:
        return (size(value) % 3, self.calls)


class Triple(_Map):
    """A text, a number and a list."""

    def result(self, value: Any) -> Any:
        return ("abc"[size(value) % 3], self.calls, [size(value)])


class Entry(_Map):
    """A dict with a key."""

    def result(self, value: Any) -> Any:
        return {"k": size(value) % 3, "v": value}


class Dot(_Map):
    """A ``Point``."""

    def result(self, value: Any) -> Any:
        return Point(size(value) % 3, [self.calls])


class Small(_Map):
    """A number."""

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


class MapFails(_Map):
    """Fails at a call, after it has changed the record."""

    def prepare(self, at: int) -> None:
        self.at = at

    def result(self, value: Any) -> Any:
        if self.calls == self.at:
            touch(value)
            raise Boom(f"map, call {self.calls}")
        return value


class _Filter(Logged, FilterFunction):
    def filter(self, value: Any) -> bool:
        self.calls += 1
        self.see(value)
        return self.stays(value)

    def stays(self, value: Any) -> bool:
        raise NotImplementedError


class EveryOther(_Filter):
    def stays(self, value: Any) -> bool:
        return self.calls % 2 == 1


class TouchAll(_Filter):
    def stays(self, value: Any) -> bool:
        touch(value)
        return True


class SomeSizes(_Filter):
    """Has no state."""

    def stays(self, value: Any) -> bool:
        return size(value) != 1


class EvenCell(_Filter):
    """Asks a variable that another function writes."""

    def prepare(self, cell: str) -> None:
        self.cell = cell

    def stays(self, value: Any) -> bool:
        found = self.cells.get(self.cell)
        return not isinstance(found, int) or found % 2 == 0


class FilterFails(_Filter):
    def prepare(self, at: int) -> None:
        self.at = at

    def stays(self, value: Any) -> bool:
        if self.calls == self.at:
            raise Boom(f"filter, call {self.calls}")
        return True


class _FlatMap(Logged, FlatMapFunction):
    def flat_map(self, value: Any) -> Any:
        self.calls += 1
        self.see(value)
        return self.results(value)

    def results(self, value: Any) -> Any:
        raise NotImplementedError


class TwiceInAList(_FlatMap):
    def results(self, value: Any) -> Any:
        return [value, value]


class TupleOfTwo(_FlatMap):
    def results(self, value: Any) -> Any:
        return (value, self.calls)


class SometimesNone(_FlatMap):
    """No result, or one."""

    def results(self, value: Any) -> Any:
        return () if self.calls % 3 == 0 else [value]


class YieldOneDict(_FlatMap):
    """Yields one dict that changes."""

    def results(self, value: Any) -> Iterator[Any]:
        found: dict[str, Any] = {"k": size(value)}
        for number in range(3):
            found["n"] = number
            yield found
            self.see("resumed", number, found)


class YieldGrowing(_FlatMap):
    """Yields one list that grows."""

    def results(self, value: Any) -> Iterator[Any]:
        numbers: list[int] = []
        for number in range(3):
            numbers.append(number)
            yield numbers


class YieldTouchYield(_FlatMap):
    """Changes what it has yielded, and yields it again."""

    def results(self, value: Any) -> Iterator[Any]:
        yield value
        self.see("resumed", value)
        touch(value)
        yield value
        touch(value)


class YieldKept(_FlatMap):
    """Yields what it has kept of the records before."""

    def prepare(self) -> None:
        self.kept: list[Any] = []

    def results(self, value: Any) -> Iterator[Any]:
        self.kept = [*self.kept[-1:], value]
        yield from self.kept
        touch(self.kept[0])


class YieldWithCell(_FlatMap):
    """Sets a variable before each result, which the functions behind it read."""

    def prepare(self, cell: str) -> None:
        self.cell = cell

    def results(self, value: Any) -> Iterator[Any]:
        for number in range(2):
            self.cells[self.cell] = (self.calls, number)
            yield value


class YieldThenFail(_FlatMap):
    def prepare(self, at: int) -> None:
        self.at = at

    def results(self, value: Any) -> Iterator[Any]:
        yield value
        if self.calls == self.at:
            raise Boom(f"flat_map, call {self.calls}")
        yield self.calls


class ReturnOrFail(_FlatMap):
    def prepare(self, at: int) -> None:
        self.at = at

    def results(self, value: Any) -> Any:
        if self.calls == self.at:
            raise Boom(f"flat_map, call {self.calls}")
        return [value]
