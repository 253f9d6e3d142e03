"""The work of one program of ``bench programs`` and ``bench nexmark``, in words that every engine understands.

Side:   pure; it runs in the Pythons of the peers too, so it imports nothing that they lack.
Names:  functions are named as ``module:function``, so that a worker of any engine can import them.
Inputs: record ``number`` of an input is ``make(number % num_made)``.  Reader ``subtask`` has the numbers subtask,
        subtask + parallelism and so on; it makes its records before the clock starts, and looks them up one by one,
        again and again.
Output: (text, number) pairs.  ``Outputs.LAST``: the last number of each text is compared; ``Outputs.SUM``: the sum of
        its numbers.
"""

import importlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any, NamedTuple


class Outputs(Enum):
    """How the outputs of a text are compared."""

    LAST = "last"
    SUM = "sum"


class Found(NamedTuple):
    """The results of a program."""

    num_outputs: int
    numbers: dict[str, int]


def imported(name: str) -> Any:
    """Import the function ``module:function``."""
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


@dataclass(frozen=True)
class Input:
    """The input of ``num_records`` records; ``num_made`` of them are different."""

    make: str
    num_made: int
    num_records: int

    def __post_init__(self) -> None:
        if self.num_made % 2 or not 0 < self.num_made <= self.num_records:
            raise ValueError(
                f"{self.make}: {self.num_records} records of {self.num_made}: give an even number, no more than there "
                "are records"
            )

    def ready(self, subtask: int = 0, parallelism: int = 1) -> list[Any]:
        """Return the different records of one reader.

        Raises:
            ValueError: the readers' cycles would not be those of one reader.
        """
        if self.num_made % parallelism:
            raise ValueError(f"{self.num_made} different records cannot be shared by {parallelism} readers")
        make = imported(self.make)
        return [make(number) for number in range(subtask, self.num_made, parallelism)]

    def share(self, subtask: int, parallelism: int) -> int:
        """Return how many records one reader gives."""
        return len(range(subtask, self.num_records, parallelism))

    def records(self, subtask: int = 0, parallelism: int = 1) -> Iterator[Any]:
        """Yield all records of one reader, which makes the different ones at once; by default there is one reader."""
        return itertools.islice(itertools.cycle(self.ready(subtask, parallelism)), self.share(subtask, parallelism))


@dataclass(frozen=True)
class Work:
    """One program; ``streams``, ``loops`` and ``flows`` are the modules that have it for the DataStream API, plain
    Python and Bytewax.

    ``is_pyflinks``: whether PyFlink has every function that the program calls.
    """

    name: str
    program: str
    inputs: tuple[Input, ...]
    streams: str
    loops: str
    flows: str
    outputs: Outputs = Outputs.LAST
    is_pyflinks: bool = True

    @property
    def is_twin(self) -> bool:
        """Whether it is an unfriendly twin, whose functions are named so."""
        return self.program.endswith("_twin")

    @property
    def num_records(self) -> int:
        """The number of records of all inputs."""
        return sum(each.num_records for each in self.inputs)

    def with_at_most(self, num_records: int, num_made: int | None = None) -> "Work":
        """Return this work with a first input of at most ``num_records`` records; the other inputs stay, for the
        program needs all of them.
        """
        first, *rest = self.inputs
        num_records = min(first.num_records, num_records)
        smaller = replace(
            first, num_records=num_records, num_made=min(first.num_made, num_made or num_records, num_records // 2 * 2)
        )
        return replace(self, inputs=(smaller, *rest))

    def as_options(self) -> dict[str, Any]:
        """Return the fields as JSON has them."""
        return asdict(self) | {"outputs": self.outputs.value}

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> "Work":
        """Return the work that JSON describes."""
        inputs = tuple(Input(**each) for each in options["inputs"])
        return cls(**options | {"inputs": inputs, "outputs": Outputs(options["outputs"])})


class Collected:
    """The outputs of one sink, looked at one by one or some at once."""

    def __init__(self, outputs: Outputs) -> None:
        self.num_outputs = 0
        self.numbers: dict[str, int] = {}
        self._adds = outputs is Outputs.SUM

    def add(self, pairs: list[tuple[str, int]]) -> None:
        """Add some outputs, in their order."""
        self.num_outputs += len(pairs)
        if self._adds:
            add_up(self.numbers, pairs)
        else:
            self.numbers.update(pairs)


def add_up(sums: dict[str, int], pairs: Iterable[tuple[str, int]]) -> None:
    """Add the numbers of every text to its sum."""
    for text, number in pairs:
        sums[text] = sums.get(text, 0) + number
