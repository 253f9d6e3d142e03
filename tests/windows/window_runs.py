"""Runs cases on the operator, with as many subtasks as the case says, and compares."""

import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from flowlet.chain.loop_code import RecordLoop
from flowlet.chain.stream_operator import StreamOperator
from flowlet.keys.exact_keys import exact_key, key_group, operator_index
from flowlet.serde.pickles.record_pickle import loads_value
from flowlet.state.rocksdb.rocksdb_keyed_state_backend import RocksDBKeyedStateBackend, RocksDBPlace
from flowlet.testing.harness_environment import SubtaskPlace
from flowlet.testing.input_harnesses import OneInputOperatorHarness
from flowlet.testing.operator_harness import HarnessState, OperatorSnapshot
from flowlet.windows.window_operator import WindowOperator
from tests.windows.window_cases import EVENT, PROCESSING, Advance, Case, Records, Restart, random_case
from tests.windows.window_functions_of_cases import as_reduced, spec_of
from tests.windows.window_reference import Outcome, Reference

_MAX_PARALLELISM = 128


def first_field(record: Any) -> Any:
    return record[0]


def zero(_: Any) -> int:
    return 0


class WindowRun:
    def __init__(self, case: Case, stack: ExitStack) -> None:
        self.case = case
        self.stack = stack
        self.outcome = Outcome()
        self.now = 0
        self.watermark: int | None = None
        self.harnesses = self._started(case.parallelism, [])

    def run(self) -> Outcome:
        for step in self.case.steps:
            match step:
                case Records():
                    self._process(step)
                case Advance():
                    for harness in self.harnesses:
                        (harness.process_watermark if step.domain == EVENT else harness.set_processing_time)(step.time)
                    self.now = step.time if step.domain == PROCESSING else self.now
                    self.watermark = step.time if step.domain == EVENT else self.watermark
                case Restart():
                    snapshots = [harness.snapshot() for harness in self.harnesses]
                    self._take_results()
                    self.watermark = None if step.lag is None or self.watermark is None else self.watermark - step.lag
                    self.harnesses = self._started(step.parallelism, snapshots)
        self._take_results()
        return self.outcome

    def _started(self, parallelism: int, snapshots: list[OperatorSnapshot]) -> list[OneInputOperatorHarness]:
        return [
            self._subtask(SubtaskPlace(each, parallelism, _MAX_PARALLELISM), snapshots) for each in range(parallelism)
        ]

    def _subtask(self, place: SubtaskPlace, snapshots: Iterable[OperatorSnapshot]) -> OneInputOperatorHarness:
        operator = WindowOperator(spec_of(self.case), first_field if self.case.is_keyed else zero)
        harness = OneInputOperatorHarness(
            operator, place=place, now_ms=self.now, is_shipped=self.case.seed % 50 == 0, checks_leaks=False
        )
        environment = harness.environment
        if self.case.is_rocksdb:
            directory = self.stack.enter_context(tempfile.TemporaryDirectory())
            context, disk = environment.ctx.key_context, RocksDBPlace(directory)
            backend = RocksDBKeyedStateBackend(context, lambda: 0, place.key_groups, _MAX_PARALLELISM, disk)
            self.stack.callback(backend.close)
            environment.keyed_state = backend
            environment.ctx = replace(environment.ctx, keyed_state=backend)
        harness.setup()
        timers: dict[int, Any] = {}
        for snapshot in snapshots:
            _, of_subtask, keyed, _ = loads_value(snapshot.payload[4:])
            timers |= {group: services for group, services in of_subtask.items() if group in place.key_groups}
            if keyed is not None:
                environment.keyed_state.restore(keyed)
        environment.timers.restore(timers)
        harness.operator.initialize_state(None)
        harness.state = HarnessState.INITIALIZED
        harness.open()
        if self.watermark is not None:
            harness.process_watermark(self.watermark)  # as the sources of a restarted job do before they go on
        return harness

    def _process(self, step: Records) -> None:
        by_subtask: dict[int, tuple[list[Any], list[int]]] = {}
        for record, timestamp in zip(step.records, step.timestamps, strict=True):
            group = key_group(record[0] if self.case.is_keyed else 0, _MAX_PARALLELISM)
            values, timestamps = by_subtask.setdefault(
                operator_index(group, _MAX_PARALLELISM, len(self.harnesses)), ([], [])
            )
            values.append(record)
            timestamps.append(timestamp)
        for subtask, (values, timestamps) in by_subtask.items():
            if self.case.seed % 3 == 0:
                keys = [*map(first_field if self.case.is_keyed else zero, values)] if self.case.seed % 2 == 0 else None
                _process_in_chain(self.harnesses[subtask].operator, values, timestamps, keys)
            else:
                self.harnesses[subtask].process_chunk(values, timestamps)

    def _take_results(self) -> None:
        for harness in self.harnesses:
            for record in harness.records:
                self.outcome.results.setdefault(None, []).append((record.value, record.timestamp))
            for record in harness.side_output("late"):
                self.outcome.late.setdefault(None, []).append((record.value, record.timestamp))
            self.outcome.num_dropped += harness.environment.ctx.counters.num_late_records_dropped
            harness.environment.keyed_state.check_invariants()
            assert isinstance(harness.operator, WindowOperator)
            harness.operator.check_invariants()
            harness.close()


def _process_in_chain(
    operator: StreamOperator, values: list[Any], timestamps: list[int], keys: list[Any] | None
) -> None:
    """Run the loop of a chain, where the operator is given the keys or takes them."""
    assert isinstance(operator, WindowOperator)
    RecordLoop("case", operator.write_record, operator.output.loop_ends).run(values, timestamps, len(values), keys)


def difference(case: Case) -> str | None:
    """Return how the operator differs from the reference; None: not at all."""
    expected = Reference(case).run()
    with ExitStack() as stack:
        run = WindowRun(case, stack)
        found = run.run()
    compared: tuple[tuple[str, Any, Any], ...] = (
        ("results", _by_key(case, _flat(expected.results)), _by_key(case, found.results)),
        ("late records", _late(expected.late), _late(found.late)),
        ("dropped records", expected.num_dropped, found.num_dropped),
    )
    problems = [f"{what}:\n  expected {one}\n  found    {other}" for what, one, other in compared if one != other]
    return "\n".join(problems) or None


def _flat(by_key: dict[Any, list[Any]]) -> dict[Any, list[Any]]:
    return {None: [each for results in by_key.values() for each in results]}


def _late(by_key: dict[Any, list[Any]]) -> list[Any]:
    return sorted((each for records in by_key.values() for each in records), key=lambda each: (each[1], each[0][1]))


def _by_key(case: Case, results: dict[Any, list[Any]]) -> dict[Any, list[Any]]:
    """Return results in order, by the key that they show; results of ``aggregate`` show none, and are sorted."""
    flat = results.get(None, [])
    if case.function == "aggregate":
        return {None: sorted(flat, key=lambda each: (each[1], each[0]))}
    if case.function == "reduce":
        flat = [(as_reduced(value), timestamp) for value, timestamp in flat]
    keyed: dict[Any, list[Any]] = {}
    for value, timestamp in flat:
        keyed.setdefault(exact_key(value[0]) if case.is_keyed else 0, []).append((value, timestamp))
    return keyed


def differing(seeds: Iterable[int]) -> list[int]:
    found = []
    for seed in seeds:
        case = random_case(seed)
        try:
            if difference(case) is not None:
                found.append(seed)
        except Exception as error:
            error.add_note(f"seed {seed}: {case}")
            raise
    return found


def report(seed: int) -> str:
    """Return a case that differs, with the steps that it needs."""
    case = _shrunk(random_case(seed))
    return f"seed {seed}; again: make windows CASES=1 SEED={seed}\n{case}\n{difference(case)}"


def _shrunk(case: Case) -> Case:
    """The case without the steps that it differs without."""
    index = 0
    while index < len(case.steps):
        smaller = replace(case, steps=case.steps[:index] + case.steps[index + 1 :])
        if difference(smaller) is not None:
            case = smaller
        else:
            index += 1
    return case
