"""Compares results with the results that the generator expects.

Side:       pure.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from tests.chaos.chaos_generator import Result, Scale, expected

_MAX_SAMPLES = 5


@dataclass
class Verdict:
    """The errors in the results; none if ``is_right``."""

    lost: int = 0
    duplicated: int = 0
    out_of_order: int = 0
    wrong: int = 0  # windows, totals and records that nobody generated
    samples: list[str] = field(default_factory=list)

    @property
    def is_right(self) -> bool:
        """Whether everything is there once, in order."""
        return not (self.lost or self.duplicated or self.out_of_order or self.wrong)

    def __str__(self) -> str:
        counts = f"lost {self.lost}, duplicated {self.duplicated}, out of order {self.out_of_order}, wrong {self.wrong}"
        return "; ".join([counts, *self.samples])

    def note(self, text: str) -> None:
        """Keep a few examples."""
        if len(self.samples) < _MAX_SAMPLES:
            self.samples.append(text)


def judge(scale: Scale, results: Iterable[Result]) -> Verdict:
    """The verdict on results in the order in which each subtask of the sink gave them."""
    verdict = Verdict()
    found: dict[tuple[int, int], list[int]] = {}
    windows: Counter[Result] = Counter()
    totals: Counter[Result] = Counter()
    flushed: Counter[int] = Counter()
    for result in results:
        kind, first, second, third, *_ = result
        if kind == "record":
            found.setdefault((first, second), []).append(third)
        elif kind == "window":
            windows[result] += 1
        elif kind == "total":
            totals[result] += 1
        else:
            flushed[first] += second
    _judge_sequences(verdict, scale, found)
    _judge_counts(verdict, expected(scale).windows, windows)
    right = Counter(expected(scale).totals.values())
    _judge_counts(verdict, right, totals)
    for total in right:
        _, key, count, *_ = total
        if flushed[key] != count:
            verdict.wrong += 1
            verdict.note(f"key {key}: timers of the clock flushed {flushed[key]} of {count}")
    return verdict


def _judge_sequences(verdict: Verdict, scale: Scale, found: dict[tuple[int, int], list[int]]) -> None:
    sequences = expected(scale).sequences
    for place, numbers in found.items():
        if place not in sequences or not set(numbers) <= set(sequences[place]):
            verdict.wrong += 1
            verdict.note(f"(source, key) {place} was never generated, or not with these numbers")
    for place, right in sequences.items():
        numbers = found.get(place, [])
        missing = set(right).difference(numbers)
        verdict.lost += len(missing)
        if missing:
            verdict.note(f"(source, key) {place} lost {sorted(missing)[:5]}")
        repeated = [number for number, count in Counter(numbers).items() if count > 1]
        verdict.duplicated += sum(numbers.count(number) - 1 for number in repeated)
        if repeated:
            verdict.note(f"(source, key) {place} repeats {sorted(repeated)[:5]}")
        swaps = sum(one > other for one, other in pairwise(numbers))
        verdict.out_of_order += swaps
        if swaps:
            verdict.note(f"(source, key) {place} is out of order {swaps} times")


def _judge_counts(verdict: Verdict, right: "Counter[Result]", found: "Counter[Result]") -> None:
    missing, extra = right - found, found - right
    repeated = [each for each in extra if each in right]
    wrong = [each for each in extra if each not in right]
    verdict.lost += missing.total()
    verdict.duplicated += sum(extra[each] for each in repeated)
    verdict.wrong += sum(extra[each] for each in wrong)
    for word, results in (("missing", missing), ("repeated", repeated), ("wrong", wrong)):
        for each in results:
            verdict.note(f"{word}: {each}")
