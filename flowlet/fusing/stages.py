"""The functions of a chain of ``map``, ``filter`` and ``flat_map`` as generated loops.

Hot path.  One comprehension for several operators, in which functions of one expression are not called (figures:
``bench fusing``).

Side:       pure.
Invariants: a stage is cut where the engine needs a whole list: to count the records between two operators (behind a filter that another one
            or a flat_map follows), and to see whether they must be copied (behind a function that may make anything, where object reuse is
            off).  What a flat_map makes goes on in batches, so that it may be endless.
Source:     hot-path measurements, 1.2: a call costs 25-40 ns, everything else in such a loop about as much as in one loop per operator.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice, repeat
from typing import Any

from flowlet.fusing.generated import GeneratedFunction
from flowlet.fusing.inlining import inline_expression


class StepKind(Enum):
    """What an operator does with the result of its function."""

    MAP = "map"
    FILTER = "filter"
    FLAT_MAP = "flat_map"


@dataclass(frozen=True, slots=True)
class Step:
    """An operator's part.

    Args:
        kind: what it does.
        function: what it calls.
        copies: whether it must not share what it is given, if that can change, with the step before.
    """

    kind: StepKind
    function: Any
    copies: bool = False


@dataclass(frozen=True, slots=True)
class Stage:
    """Steps ``start`` to ``stop - 1``, which run in one loop.

    ``must_not_change``: they may only be run on records that cannot change; nothing has to be copied then.  ``filter``: the step that is
    a filter; None if there is none.  ``is_flat``: the last step is a flat_map.
    """

    start: int
    stop: int
    must_not_change: bool
    filter: int | None
    is_flat: bool


def stages_of(steps: Sequence[Step]) -> list[Stage]:
    """Where to cut a chain."""
    stages: list[Stage] = []
    start = 0
    is_known = False  # that what enters the stage cannot change
    for stop in range(1, len(steps) + 1):
        if stop < len(steps) and not _is_cut(steps[start:stop], steps[stop]):
            continue
        part = steps[start:stop]
        has_copies = any(step.copies for step in part)
        filters = [start + index for index, step in enumerate(part) if step.kind is StepKind.FILTER]
        is_flat = part[-1].kind is StepKind.FLAT_MAP
        stages.append(Stage(start, stop, has_copies and not is_known, filters[0] if filters else None, is_flat))
        is_known = (is_known or has_copies) and all(map(_keeps_unchanging, part))
        start = stop
    return stages


def _is_cut(part: Sequence[Step], following: Step) -> bool:
    has_filter = any(step.kind is StepKind.FILTER for step in part)
    return (
        part[-1].kind is StepKind.FLAT_MAP
        or (has_filter and following.kind is not StepKind.MAP)
        or (following.copies and not all(map(_keeps_unchanging, part)))
    )


def _keeps_unchanging(step: Step) -> bool:
    """Whether what cannot change before the step cannot change after it."""
    if step.kind is not StepKind.MAP:
        return step.kind is StepKind.FILTER
    expression = inline_expression(step.function)
    return expression is not None and expression.keeps_unchanging


def has_inlined(steps: Sequence[Step]) -> bool:
    """Whether there is anything to gain."""
    return any(inline_expression(step.function) is not None for step in steps)


def list_stage(title: str, steps: Sequence[Step], stage: Stage, *, has_timestamps: bool) -> Callable[..., Any]:
    """The loop of a stage without flat_map.

    Returns:
        A function of the records (and, with timestamps and a filter, of an iterable of these and a function that takes those of the
        records that stay); gives the list of results.  ``failed_call`` of what it raises has the number of the step as label.
    """
    generated = GeneratedFunction(title)
    has_stamps = has_timestamps and stage.filter is not None
    lines = ["for v0, stamp in zip(records, stamps)" if has_stamps else "for v0 in records"]
    result = "v0"
    condition: str | None = None
    for index, step in enumerate(steps[stage.start : stage.stop]):
        if not result.startswith("v"):
            lines.append(f"for v{index} in [{result}]")  # an assignment, for the compiler too
            result = f"v{index}"
        call = generated.call(step.function, result, label=stage.start + index)
        if step.kind is StepKind.FILTER:
            condition = call
            lines.append(f"if {call}")
        else:
            result = call
    if has_stamps:
        lines.append("for _ in [keep(stamp)]")
    parameters = "records, stamps, keep" if has_stamps else "records"
    body = "\n".join(f"        {line}" for line in [result, *lines])
    # Whether a condition holds is asked outside of the call that gives it.
    return generated.define(f"def run({parameters}):\n    return [\n{body}\n    ]", blamed=condition)


def flat_stage(
    title: str, steps: Sequence[Step], stage: Stage, *, iterate: Callable[[Any], Any], has_timestamps: bool
) -> Callable[..., Any]:
    """The loop of a stage that ends with a flat_map.

    Args:
        title: for people.
        steps: all of the chain.
        stage: which of them.
        iterate: gives an iterator over what the function returned, if that is no list.
        has_timestamps: which variant is meant.

    Returns:
        A generator function of the number of results from which on a batch goes out, and the records; with timestamps, of these, too.
        Gives batches; with timestamps, pairs of a batch and its timestamps.  Labels are as in ``list_stage``.
    """
    generated = GeneratedFunction(title)
    calls = [generated.call(steps[at].function, f"v{index}", label=at) for index, at in enumerate(range(stage.start, stage.stop))]
    maps = [f"v{index} = {call}" for index, call in enumerate(calls, 1)]
    text = _FLAT_WITH_STAMPS if has_timestamps else _FLAT
    names = {"iterate": generated.value(iterate), "islice": generated.value(islice), "repeat": generated.value(repeat)}
    return generated.define(text.format(maps="\n        ".join(maps), result=f"v{len(maps)}", **names), blamed=calls[-1])


# A list is taken as it is; of anything else never more than a batch is taken before what is there went out.
_FLAT = """
def run(limit, records):
    results = []
    for v0 in records:
        {maps}
        if type({result}) is list:
            results += {result}
        else:
            rest = {iterate}({result})
            results += {islice}(rest, limit)
            while len(results) >= limit:
                yield results
                results = list({islice}(rest, limit))
        if len(results) >= limit:
            yield results
            results = []
    if results:
        yield results
"""
_FLAT_WITH_STAMPS = """
def run(limit, records, timestamps):
    results, stamps = [], []
    for v0, stamp in zip(records, timestamps):
        {maps}
        if type({result}) is list:
            results += {result}
        else:
            rest = {iterate}({result})
            results += {islice}(rest, limit)
            while len(results) >= limit:
                stamps += {repeat}(stamp, len(results) - len(stamps))
                yield results, stamps
                results, stamps = list({islice}(rest, limit)), []
        stamps += {repeat}(stamp, len(results) - len(stamps))
        if len(results) >= limit:
            yield results, stamps
            results, stamps = [], []
    if results:
        yield results, stamps
"""
