"""Compares the doings of a job with the meaning of its program, and shrinks a program that differs as far as possible.

Side:       pure, but for the runs that it is given.
Rules:      calls of one task are compared in their order, calls of different tasks are not: tasks run side by side.
            Where streams with records meet, records come in no order; what follows is compared without it.  Of a job
            that fails: the task that fails has done exactly what it must have done by then.  A task before it has done
            at least what the failed one has read, and no more than it would have done without the failure.  A task
            behind it, and the client, have seen the beginning of what they would have seen; how much of it arrives
            before the job is cancelled is left to chance.  Of an async operator that fails it is left to chance, too,
            which results were emitted before.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from tests.differential.engine import Actual
from tests.differential.interpreter import Expected, interpret
from tests.differential.programs import Call, Chaining, Kind, Program, Step
from tests.differential.record_functions import Identity

Run = Callable[[Program], Actual]
_MAX_TRIALS = 400  # of one shrinking


def difference(program: Program, actual: Actual) -> str | None:
    """Return how a job differed from its program; None if it did not."""
    expected = interpret(program)
    return (
        _error_difference(expected, actual)
        or _log_difference(program, expected, actual)
        or _result_difference(program, expected, actual)
    )


def _error_difference(expected: Expected, actual: Actual) -> str | None:
    failed = expected.failed_task
    if failed is None:
        return None if actual.error is None else f"the job failed:\n{actual.error_text}"
    failure = expected.tasks[failed].failure
    assert failure is not None, "the task that failed"
    wanted = (failure.step, failure.record, failure.error)
    if actual.error is None:
        return f"the job did not fail; expected (step, record, error) {wanted}"
    step, record, message = actual.error
    found = (step, record, None if message is None else f"Boom({message!r})")
    return (
        None
        if found == wanted
        else _two("(step, record, error)", wanted, found) + f"\nThe error's text:\n{actual.error_text}"
    )


def _log_difference(program: Program, expected: Expected, actual: Actual) -> str | None:
    unordered = program.unordered_tasks()
    least = expected.least_logged()
    failed = expected.failed_task
    failure = None if failed is None else expected.tasks[failed].failure
    is_async = failure is not None and program.step(failure.step).kind is Kind.ASYNC
    apart = {step.id for step in program.steps if step.kind in (Kind.SOURCE, Kind.ASYNC)}
    for head, task in expected.tasks.items():
        members = {step.id for step in program.steps if program.head(step) == head} - apart
        wanted = [f"step {step}: {text}" for step, text in task.log]
        found = [f"step {step}: {text}" for step, text in actual.log if step in members]
        is_exact = failed is None or (head == failed and not is_async)
        problem = _compared(
            f"calls in the task of step {head}", wanted, found, is_exact, least[head], is_ordered=head not in unordered
        )
        if problem is not None:
            return problem
        for step_id in apart & {step.id for step in program.steps if program.head(step) == head}:
            wanted = task.other_logs.get(step_id, [])
            found = [text for step, text in actual.log if step == step_id]
            is_ordered = head not in unordered
            problem = _compared(f"calls of step {step_id}", wanted, found, failed is None, 0, is_ordered=is_ordered)
            if problem is not None:
                return problem
    return None


def _result_difference(program: Program, expected: Expected, actual: Actual) -> str | None:
    wanted, found = list(map(repr, expected.collected)), list(map(repr, actual.collected))
    is_ordered = expected.collected_from not in program.unordered_tasks()
    return _compared(
        "collected records", wanted, found, is_exact=expected.failed_task is None, least=0, is_ordered=is_ordered
    )


def _compared(
    what: str, wanted: list[str], found: list[str], is_exact: bool, least: int, *, is_ordered: bool
) -> str | None:
    if not is_ordered:
        same = Counter(wanted) == Counter(found) if is_exact else Counter(found) <= Counter(wanted)
        return None if same else _two(f"{what}, in any order", sorted(wanted), sorted(found))
    if is_exact:
        return None if wanted == found else _two(what, wanted, found)
    if found != wanted[: len(found)]:
        return _two(f"{what}, of which the beginning must be the same", wanted, found)
    return None if len(found) >= least else _two(f"{what}, {least} of them at least", wanted, found)


def _two(what: str, wanted: Any, found: Any) -> str:
    if not isinstance(wanted, list):
        return f"{what}\n  expected: {wanted}\n  actual:   {found}"
    first = next(
        (index for index, pair in enumerate(zip(wanted, found, strict=False)) if pair[0] != pair[1]),
        min(len(wanted), len(found)),
    )
    start, stop = max(0, first - 3), first + 8
    lines = [f"{what}: {len(wanted)} expected, {len(found)} actual, the first difference is number {first}"]
    for name, entries in (("expected", wanted), ("actual", found)):
        lines.append(f"  {name}:")
        lines += [
            f"   {'>' if index == first else ' '} {index}: {entry[:300]}"
            for index, entry in enumerate(entries[start:stop], start)
        ]
    return "\n".join(lines)


# ---------------------------------------------------------------- shrinking


def shrunk(program: Program, run: Run) -> tuple[Program, str]:
    """The smallest program found that still differs, and how."""
    found = difference(program, run(program))
    assert found is not None, "it differs"
    trials = 0
    is_smaller = True
    while is_smaller and trials < _MAX_TRIALS:
        is_smaller = False
        for candidate in _smaller(program):
            trials += 1
            problem = _problem(candidate, run)
            if problem is not None:
                program, found, is_smaller = candidate, problem, True
                break
            if trials >= _MAX_TRIALS:
                break
    return program, found


def _problem(candidate: Program, run: Run) -> str | None:
    failures = [task.failure for task in interpret(candidate).tasks.values() if task.failure is not None]
    if any("Boom" not in failure.error for failure in failures):
        return None  # without the steps that were left out, a function gets records that it was not made for
    return difference(candidate, run(candidate))


def _smaller(program: Program) -> Iterator[Program]:
    for step in reversed(program.steps):
        yield from (_normal(each) for each in _without(program, step))
    for step in program.steps:
        yield from (_normal(_with(program, each)) for each in _simpler(step))


def _normal(program: Program) -> Program:
    """Return the program without sources that nobody reads, which are no part of a job, and with variables that fit its
    tasks.
    """
    steps = tuple(
        step
        for step in program.steps
        if not step.kind.is_source or program.collected.step == step.id or program.consumers(step.id)
    )
    return replace(program, steps=steps).with_cells()


def _with(program: Program, step: Step) -> Program:
    return replace(program, steps=tuple(step if other.id == step.id else other for other in program.steps))


def _without(program: Program, step: Step) -> Iterator[Program]:
    steps = tuple(other for other in program.steps if other is not step)
    if step.kind.is_source:
        return
    for read in step.reads:
        readers = tuple(
            replace(other, reads=tuple(read if each.step == step.id else each for each in other.reads))
            for other in steps
        )
        yield replace(
            program, steps=readers, collected=read if program.collected.step == step.id else program.collected
        )


def _simpler(step: Step) -> Iterator[Step]:
    if step.kind is Kind.COLLECTION and step.records:
        count = len(step.records)
        for part in _parts(step.records):
            yield replace(step, records=part)
        if count <= 12 and step.records != tuple(range(count)):
            yield replace(step, records=tuple(range(count)))
            yield replace(step, records=tuple([number] for number in range(count)))
    if step.kind is Kind.SOURCE and step.call is not None:
        count, *rest = step.call.arguments
        if count > 1:
            yield replace(step, call=Call(step.call.name, (count - 1, *rest)))
    if len(step.reads) == 2 and not step.kind.is_connected:
        yield from (replace(step, reads=(read,)) for read in step.reads)
    if step.chaining is not Chaining.ALWAYS and step.kind is not Kind.ASYNC:
        yield replace(step, chaining=Chaining.ALWAYS)
    if step.is_rebalanced:
        yield replace(step, is_rebalanced=False)
    if step.kind is Kind.MAP and step.call != Call(Identity.__name__):
        yield replace(step, call=Call(Identity.__name__))
    if step.watermarks is not None:
        yield replace(step, watermarks=None)


def _parts(records: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    size = len(records) // 2
    while size:
        for start in range(0, len(records), size):
            yield (*records[:start], *records[start + size :])
        size //= 2
    if len(records) == 1:
        return
