"""Values that write down everything that is done with them."""

from collections.abc import Callable
from typing import Any

_BINARY = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift"]


class BrokenError(Exception):
    """What a spy was told to raise."""


class Journal:
    """What was done, in order; says when to fail.

    Args:
        fail_at: the number of the operation that raises; -1: none.
    """

    def __init__(self, fail_at: int = -1) -> None:
        self.entries: list[str] = []
        self._fail_at = fail_at

    def write(self, entry: str) -> None:
        self.entries.append(entry)
        if len(self.entries) - 1 == self._fail_at:
            raise BrokenError(entry)


class Spy:
    """Takes part in every operation of Python; truth depends on its name."""

    _journal: Journal
    _name: str

    def __init__(self, journal: Journal, name: str) -> None:
        self.__dict__.update(_journal=journal, _name=name)

    def _note(self, operation: str, *others: Any) -> "Spy":
        entry = f"{operation}({', '.join([self._name, *map(describe, others)])})"
        self._journal.write(entry)
        return Spy(self._journal, entry)

    def __getattr__(self, name: str) -> "Spy":
        return self._note("getattr", name)

    def __getitem__(self, index: Any) -> "Spy":
        return self._note("getitem", index)

    def __neg__(self) -> "Spy":
        return self._note("neg")

    def __pos__(self) -> "Spy":
        return self._note("pos")

    def __invert__(self) -> "Spy":
        return self._note("invert")

    def __format__(self, spec: str) -> str:
        return self._note("format", spec)._name

    def __repr__(self) -> str:
        return self._note("repr")._name

    def __hash__(self) -> int:
        return len(self._note("hash")._name)

    def __contains__(self, other: object) -> bool:
        return len(self._note("contains", other)._name) % 2 == 0

    def __bool__(self) -> bool:
        return len(self._note("bool")._name) % 2 == 0

    def __index__(self) -> int:
        self._note("index")
        return 0

    def __eq__(self, other: object) -> Any:
        return self._note("eq", other)

    def __ne__(self, other: object) -> Any:
        return self._note("ne", other)


def _operation(name: str) -> Callable[..., Spy]:
    return lambda self, other: self._note(name, other)


for _name in _BINARY:
    setattr(Spy, f"__{_name}__", _operation(_name))
    setattr(Spy, f"__r{_name}__", _operation(f"r{_name}"))
for _name in ("lt", "le", "gt", "ge"):
    setattr(Spy, f"__{_name}__", _operation(_name))


def describe(value: Any) -> str:
    """What the value is, exactly, without doing anything with a spy."""
    match value:
        case Spy():
            return str(value.__dict__["_name"])
        case tuple() | list() | set():
            return f"{type(value).__name__}[{', '.join(map(describe, value))}]"
        case dict():
            return f"dict[{', '.join(f'{describe(key)}: {describe(each)}' for key, each in value.items())}]"
        case slice():
            return f"slice({describe(value.start)}, {describe(value.stop)}, {describe(value.step)})"
        case _:
            return f"{type(value).__name__} {value!r}"
