"""The functions of a program in the DataStream API, called for one record after the other, and nothing else.

That is what the program would take in an engine that costs nothing: a plain loop needs no call for a filter, a key and
a result, a program in the API does.

Side:   pure.
Limits: map, flat_map, filter, key_by, reduce, process without timers; two streams that are connected and processed are
        read one after the other, the second one first, as the plain loops do.
"""

from collections.abc import Callable, Iterator
from typing import Any

from bench.jobs.work import Found, Outputs, Work, imported

Step = tuple[str, Any]


class Stream:
    """Records the steps of a program; has the methods of ``DataStream`` that it calls.

    Args:
        steps: the steps in order: the name of the method and the user's function.
    """

    def __init__(self, *steps: Step) -> None:
        self.steps = steps

    def map(self, function: Any, *_: Any) -> "Stream":
        """Map each record to one."""
        return Stream(*self.steps, ("map", function))

    def flat_map(self, function: Any, *_: Any) -> "Stream":
        """Map each record to any number of records."""
        return Stream(*self.steps, ("flat_map", function))

    def filter(self, function: Any) -> "Stream":
        """Keep some of the records."""
        return Stream(*self.steps, ("filter", function))

    def key_by(self, function: Any, *_: Any) -> "Stream":
        """Return the records by key."""
        return Stream(*self.steps, ("get_key", function))

    def reduce(self, function: Any) -> "Stream":
        """Return the result per key after each record."""
        return Stream(*self.steps, ("reduce", function))

    def process(self, function: Any, *_: Any) -> "Stream":
        """Return the results of a process function."""
        return Stream(*self.steps, ("process_element", function))

    def connect(self, other: "Stream") -> "Connected":
        """Connect two streams for one function."""
        return Connected(self, other)


class Connected:
    """Two connected streams.

    Args:
        first: is read last.
        second: is read first.
    """

    def __init__(self, first: Stream, second: Stream) -> None:
        self._streams = first, second

    def process(self, function: Any, *_: Any) -> list[Stream]:
        """Return each stream with its method of the function."""
        return [
            Stream(*stream.steps, (f"process_element{number}", function))
            for number, stream in enumerate(self._streams, 1)
        ]


class Context:
    """The context that a process function asks for its key."""

    key: Any = None

    def get_current_key(self) -> Any:
        """Return the key of the record."""
        return self.key


def loop_of(work: Work) -> Callable[..., Found]:
    """Return the loop of a work's program.

    Raises:
        AttributeError: the program does something that such a loop cannot.
        ValueError: one input is read twice.
    """
    found = imported(f"{work.streams}:{work.program}")(*[Stream() for _ in work.inputs])
    streams = found if isinstance(found, list) else [found]
    if len(streams) != len(work.inputs):
        raise ValueError(f"{work.name} has {len(streams)} streams of {len(work.inputs)} inputs")
    return lambda *inputs: _run(work, streams, inputs)


def can_call(work: Work) -> bool:
    """Whether there is a loop for the work."""
    try:
        loop_of(work)
    except (AttributeError, ValueError):
        return False
    return True


def _run(work: Work, streams: list[Stream], inputs: tuple[Iterator[Any], ...]) -> Found:
    numbers: dict[str, int] = {}
    opened: set[int] = set()
    num_outputs = 0
    for stream, records in reversed(list(zip(streams, inputs, strict=True))):
        for function in [
            function for _, function in stream.steps if hasattr(function, "open") and id(function) not in opened
        ]:
            opened.add(id(function))
            function.open(None)
        num_outputs += _loop(stream.steps, work.outputs)(records, numbers)
    return Found(num_outputs, numbers)


def _loop(steps: tuple[Step, ...], outputs: Outputs) -> Callable[[Iterator[Any], dict[str, int]], int]:
    """Return a function of records and numbers that runs the steps and returns the number of outputs."""
    context = Context()
    names: dict[str, Any] = {"context": context, "missing": object(), "state": {}}
    lines, depth = ["def loop(records, numbers):", " num_outputs = 0", " for value in records:"], 2
    for number, (method, function) in enumerate(steps):
        names[f"f{number}"] = getattr(function, method, function)
        for line in _TEXTS[method].format(f=f"f{number}").splitlines():
            lines.append(" " * depth + line)
            depth += line.startswith("for ")
    ends = ("text, number = value", _LAST if outputs is Outputs.LAST else _SUM, "num_outputs += 1")
    lines += [" " * depth + line for line in ends]
    # As defaults the names are local variables, the quickest way to call them.
    lines[0] = f"def loop(records, numbers, {', '.join(f'{name}={name}' for name in names)}):"
    exec("\n".join([*lines, " return num_outputs"]), names)
    loop: Callable[[Iterator[Any], dict[str, int]], int] = names["loop"]
    return loop


_PROCESS = "for value in {f}(value, context) or ():"
_TEXTS = {
    "map": "value = {f}(value)",
    "flat_map": "for value in {f}(value):",
    "filter": "if not {f}(value): continue",
    "get_key": "key = context.key = {f}(value)",
    "reduce": "so_far = state.get(key, missing)\nif so_far is not missing: value = {f}(so_far, value)\nstate[key] = "
    "value",
    "process_element": _PROCESS,
    "process_element1": _PROCESS,
    "process_element2": _PROCESS,
}
_LAST = "numbers[text] = number"
_SUM = "numbers[text] = numbers.get(text, 0) + number"
