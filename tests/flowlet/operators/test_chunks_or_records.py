"""Every operator gives equal results with one big chunk, with one record per chunk, and with any other cut.

Source: no test of Flink's, whose operators see single records; this is what lets ours see chunks.
"""

import contextlib
import importlib
import inspect
import io
import pkgutil
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flowlet.async_io
import flowlet.chain
import flowlet.connectors
import flowlet.joins
import flowlet.operators
import flowlet.watermarks
import flowlet.windows
from flowlet.async_io import async_queue
from flowlet.chain import chunking_output
from flowlet.chain.stream_operator import MultipleInputStreamOperator, StreamOperator
from flowlet.errors import FlowletError, UserFunctionError
from flowlet.graph.transformation import OperatorTransformation
from flowlet.kernels import grouping
from flowlet.operators import keyed_aggregation_operator, process_operator
from flowlet.operators.source_operator import SourceOperator
from flowlet.records import ACTIVE, IDLE, LatencyMarker
from flowlet.testing.operator_harness import OperatorHarness, StreamRecord
from tests.flowlet.operators.every_operator import CASES, Case
from tests.flowlet.operators.keyed_operators import ITEMS, OPERATORS, TRIPLE, Streams
from tests.flowlet.serde.exact import exact
from tests.flowlet.stream_graphs import graph_of, unstarted

# A cut says how many of the remaining records the next chunk gets.
Cut = Callable[[int], int]


@dataclass(frozen=True)
class Run:
    """Records between two other steps."""

    input_id: int
    values: list[Any]
    timestamps: list[int] | None


Step = Run | tuple[str, int, int]  # what else happens: its name, the input, a number


@dataclass
class Outcome:
    """All that can be seen of an operator."""

    outputs: dict[str | None, list[Any]] = field(default_factory=dict)
    printed: str = ""
    timers: list[Any] = field(default_factory=list)
    error: Any = None

    def is_within(self, other: "Outcome") -> bool:
        """Return whether this is the other one's output, or the beginning of it."""
        is_prefix = all(
            other.outputs.get(tag, [])[: len(elements)] == elements for tag, elements in self.outputs.items()
        )
        return is_prefix and other.printed.startswith(self.printed)


def whole(num_left: int) -> int:
    return num_left


def single(num_left: int) -> int:
    return 1


def pieces(num_left: int) -> int:
    return min(num_left, 50)


def any_cut(seed: int) -> Cut:
    rng = random.Random(seed)
    return lambda num_left: rng.randint(1, min(num_left, rng.choice([2, 7, 50])))


def chunks(run: Run, cut: Cut) -> Iterator[tuple[list[Any], list[int] | None]]:
    start = 0
    while start < len(run.values):
        part = slice(start, start + cut(len(run.values) - start))
        yield run.values[part], None if run.timestamps is None else run.timestamps[part]
        start = part.stop


def take(harness: OperatorHarness, step: Step, cut: Cut) -> None:
    match step:
        case Run():
            for values, timestamps in chunks(step, cut):
                harness.process_input_chunk(step.input_id, values, timestamps)
        case ("watermark", input_id, timestamp):
            harness.process_input_watermark(input_id, timestamp)
        case ("status", input_id, is_idle):
            harness.process_input_watermark_status(input_id, IDLE if is_idle else ACTIVE)
        case ("marker", input_id, marked_ms):
            harness.process_input_latency_marker(input_id, LatencyMarker(marked_ms, bytes(16), 0))
        case ("time", _, duration_ms):
            harness.advance_processing_time(duration_ms)
        case ("mails", _, _):
            harness.run_mails()
        case _:
            raise AssertionError(step)


def run(case: Case, steps: list[Step], cut: Cut) -> Outcome:
    """The outcome with single records is that of an operator that was shipped."""
    outcome, printed = Outcome(), io.StringIO()
    harness = OperatorHarness(case.make(), checks_leaks=False, is_shipped=cut is single)
    with contextlib.redirect_stdout(printed):
        try:
            with harness:
                for step in steps:
                    take(harness, step, cut)
                outcome.timers = [
                    exact((timer.timestamp, timer.key))
                    for timer in harness.event_time_timers + harness.processing_time_timers
                ]
                for input_id in range(1, case.num_inputs + 1):
                    harness.end_input(input_id)
                harness.finish()
        except FlowletError as error:
            outcome.error = described(error)
    outcome.printed = printed.getvalue()
    for tag in (None, *harness.recorded.tag_ids):
        outcome.outputs[tag] = [exact_element(element) for element in harness.recorded.elements_of(tag)]
    return outcome


def described(error: FlowletError) -> Any:
    record = error.record_preview if isinstance(error, UserFunctionError) else None
    return type(error), str(error), record, type(error.__cause__), str(error.__cause__)


def exact_element(element: Any) -> Any:
    return exact((element.value, element.timestamp)) if isinstance(element, StreamRecord) else element


def steps_of(case: Case, rng: random.Random, num_steps: int, max_run: int) -> list[Step]:
    """Return a run, another step, a run, and so on."""
    has_timestamps = rng.random() < 0.7
    watermark = 0
    steps: list[Step] = []
    for _ in range(num_steps):
        input_id = rng.randint(1, case.num_inputs)
        length = rng.randint(0, max_run)
        watermark += rng.randrange(4)
        stamps = [watermark + rng.randrange(-2, 12) for _ in range(length)]
        steps.append(Run(input_id, [case.record(rng) for _ in range(length)], stamps if has_timestamps else None))
        others = [("watermark", input_id, watermark), ("status", input_id, rng.randrange(2)), ("marker", input_id, 1)]
        steps += rng.choices(
            [*others, ("time", 0, rng.randrange(12)), ("mails", 0, 0)], weights=[5, 1, 1, 3, 2], k=rng.randrange(3)
        )
    return steps


# Operators that look at a whole chunk before the first record of it goes on: for its keys, where no writer took them,
# or its columns.
LOOK_AHEAD = {
    "reduce with bad keys",
    "sum with a selector that fails",
    "sum with bad keys",
    "count with bad keys",
    "to columns that fails",
    "keyed process with a selector that fails",
    "keyed process with bad keys",
}


# Of internal chunks, in records.
LIMITS = [
    (grouping, "_MIN_RADIX"),
    (chunking_output, "MAX_WAITING"),
    (process_operator, "MAX_WAITING"),
    (process_operator, "_MAX_GATHERED"),
    (keyed_aggregation_operator, "FINAL_CHUNK_RECORDS"),
    (async_queue, "MAX_CHUNK_RECORDS"),
]


def check(name: str, steps: list[Step], *cuts: Cut, known: Cut = single) -> None:
    """``known``: the cut whose outcome the others must have."""
    case = CASES[name]
    by_record = run(case, steps, known)
    for cut in cuts:
        by_chunk = run(case, steps, cut)
        assert by_chunk.error == by_record.error
        if by_record.error is None or name not in LOOK_AHEAD:
            assert by_chunk == by_record
        else:
            # Records before the one that failed may have gone on already, or not.
            assert by_chunk.is_within(by_record)


@pytest.mark.parametrize("name", CASES)
def test_an_operator_does_the_same_however_its_records_are_cut(name: str) -> None:
    """A few random inputs, which every run repeats, give equal results; the slow tests below try more."""
    case = CASES[name]

    for seed, (num_steps, max_run) in enumerate([(3, 12), (4, 3), (1, 40)]):
        check(name, steps_of(case, random.Random(f"{name} {seed}"), num_steps, max_run), whole, any_cut(seed))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@settings(max_examples=20)
@given(seed=st.integers(0, 2**32), num_steps=st.integers(1, 8), max_run=st.sampled_from([1, 3, 12, 40]))
def test_an_operator_does_the_same_with_chunks_and_with_records(
    name: str, seed: int, num_steps: int, max_run: int
) -> None:
    """Values, types, timestamps, order, watermarks, side outputs, timers, and the error if there is one."""
    case = CASES[name]

    check(name, steps_of(case, random.Random(seed), num_steps, max_run), whole, any_cut(seed))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_an_operator_does_the_same_with_one_very_big_chunk(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk has more records than any internal chunk; in failing cases, records up to the first failure count.

    Internal chunks have a tenth of their size.  The comparison is with chunks of 50, which the tests above compare with
    single records.
    """
    for module, limit in LIMITS:
        monkeypatch.setattr(module, limit, getattr(module, limit) // 10)
    case = CASES[name]
    rng = random.Random(name)
    values = [case.record(rng) for _ in range(300)]

    for timestamps in (None, [rng.randrange(100) for _ in values]):
        check(name, [Run(1, values, timestamps), ("watermark", 1, 50), ("time", 0, 100)], whole, known=pieces)


def operators_in(*packages: ModuleType) -> set[type[StreamOperator]]:
    """Return the operators in the modules of the packages from which no other one derives."""
    found: set[type[StreamOperator]] = set()
    for package in packages:
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            members = vars(importlib.import_module(module.name)).values()
            found |= {each for each in members if isinstance(each, type) and issubclass(each, StreamOperator)}
    return {kind for kind in found if not any(other is not kind and issubclass(other, kind) for other in found)}


PACKAGES = (flowlet.async_io, flowlet.chain, flowlet.connectors, flowlet.operators, flowlet.watermarks)


def test_every_operator_has_a_case() -> None:
    """An operator that is new must be added to ``every_operator``; sources read no records."""
    tested = {type(case.make()) for case in CASES.values()}

    assert operators_in(*PACKAGES) - tested == {SourceOperator}
    assert all(isinstance(case.make(), MultipleInputStreamOperator) == (case.num_inputs > 1) for case in CASES.values())


def test_every_operator_with_keys_has_a_row() -> None:
    """An operator that is new and takes a key selector must be added to ``keyed_operators``."""
    tested: set[str] = set()
    for make in OPERATORS.values():
        environment = unstarted()
        make(Streams(environment.from_collection(ITEMS[:3], TRIPLE))).print()
        for node in graph_of(environment.execute).nodes.values():
            if isinstance(node.transformation, OperatorTransformation):
                tested.add(node.transformation.factory.target.partition(":")[2])

    keyed = {
        each.__name__
        for each in operators_in(*PACKAGES, flowlet.joins, flowlet.windows)
        if any(name.startswith("key") for name in inspect.signature(each.__init__).parameters)
    }
    assert keyed - tested == set()
