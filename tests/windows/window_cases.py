"""Random cases: how a stream is put into windows, and what happens on it.

Side:       pure.
Invariants: a seed always gives one case.
"""

import random
from dataclasses import dataclass, field
from typing import Any

MAX_WATERMARK = 2**63 - 1
EVENT, PROCESSING = "event", "processing"


@dataclass(frozen=True)
class Assigner:
    """``kind`` and its numbers; ``offset`` and ``slide`` where it has them."""

    kind: str  # tumbling, sliding, session, dynamic, count, global
    domain: str = EVENT
    size: int = 0
    slide: int = 0
    offset: int = 0

    @property
    def merges(self) -> bool:
        return self.kind in ("session", "dynamic")


@dataclass(frozen=True)
class Trigger:
    """``number``: of records, or the interval, or the threshold."""

    kind: str  # default, event, processing, count, continuous, never, threshold
    number: int = 0
    domain: str = EVENT
    purges: bool = False


@dataclass(frozen=True)
class Evictor:
    kind: str  # count, time, delta
    number: int
    is_after: bool


@dataclass(frozen=True)
class Records:
    """One chunk: records are (key, id, number), with their timestamps."""

    records: tuple[tuple[Any, int, int], ...]
    timestamps: tuple[int, ...]


@dataclass(frozen=True)
class Advance:
    """The watermark, or the clock, moves on."""

    domain: str
    time: int


@dataclass(frozen=True)
class Restart:
    """A snapshot, and a restart from it with another number of subtasks.

    ``lag``: how far behind the former watermark the first one is; None: there is none before the next one of the case.
    """

    parallelism: int
    lag: int | None = 0


Step = Records | Advance | Restart


@dataclass(frozen=True)
class Case:
    """One case; ``function`` is one of ``FUNCTIONS``."""

    seed: int
    assigner: Assigner
    trigger: Trigger
    evictor: Evictor | None
    lateness: int
    has_late_output: bool
    function: str
    is_keyed: bool
    is_rocksdb: bool
    parallelism: int
    steps: tuple[Step, ...] = field(repr=False)

    def __str__(self) -> str:
        steps = "\n".join(f"    {step}" for step in self.steps)
        return f"{self!r}\n{steps}"


FUNCTIONS = ("reduce", "aggregate", "reduce_process", "aggregate_apply", "process", "apply", "stateful")
KEYS: tuple[Any, ...] = ("a", "b", 7, ("c", 1), None)


def random_case(seed: int) -> Case:
    rng, lags = random.Random(seed), random.Random(f"lags of {seed}")
    assigner = _assigner(rng)
    trigger = _trigger(rng, assigner)
    evictor = _evictor(rng) if rng.random() < 0.2 else None
    return Case(
        seed,
        assigner,
        trigger,
        evictor,
        rng.choice((0, 0, 0, 3, 12)) if assigner.domain == EVENT else 0,
        rng.random() < 0.5,
        rng.choice(FUNCTIONS),
        rng.random() < 0.85,
        rng.random() < 0.02,
        rng.choice((1, 1, 1, 2, 3)),
        _steps(
            rng,
            lags,
            num_keys=rng.randint(1, len(KEYS)),
            has_clock=assigner.domain == PROCESSING or trigger.domain == PROCESSING,
        ),
    )


def _assigner(rng: random.Random) -> Assigner:
    kind = rng.choice(
        ("tumbling", "tumbling", "sliding", "sliding", "session", "session", "dynamic", "count", "global")
    )
    domain = rng.choice((EVENT, EVENT, EVENT, PROCESSING))
    size = rng.randint(1, 20)
    match kind:
        case "tumbling":
            return Assigner(kind, domain, size, 0, rng.randint(1 - size, size - 1) if rng.random() < 0.5 else 0)
        case "sliding":
            slide = rng.randint(1, size + 3)
            return Assigner(kind, domain, size, slide, rng.randint(1 - slide, slide - 1) if rng.random() < 0.4 else 0)
        case "session" | "dynamic":
            return Assigner(kind, domain, rng.randint(1, 8))
        case "count":
            return Assigner(kind, PROCESSING, rng.randint(1, 5), rng.choice((0, 0, 1, 2, 3)))
        case _:
            return Assigner(kind, PROCESSING)


def _trigger(rng: random.Random, assigner: Assigner) -> Trigger:
    purges = rng.random() < 0.3
    if assigner.kind in ("count", "global"):
        count = Trigger("count", rng.randint(1, 4), PROCESSING, purges)
        return count if assigner.kind == "global" or rng.random() < 0.3 else Trigger("default", 0, PROCESSING)
    if rng.random() < 0.45:
        return Trigger("default", 0, assigner.domain)
    kind = rng.choice(("event", "processing", "count", "continuous", "threshold", "never"))
    if kind in ("event", "processing"):
        return Trigger(kind, 0, kind, purges)
    if kind == "never" and assigner.merges:  # it cannot merge
        kind = "count"
    domain = rng.choice((EVENT, assigner.domain)) if kind in ("continuous", "threshold") else assigner.domain
    if assigner.domain == PROCESSING and domain == EVENT:
        domain = PROCESSING
    return Trigger(kind, rng.randint(1, 9), domain, purges)


def _evictor(rng: random.Random) -> Evictor:
    return Evictor(rng.choice(("count", "time", "delta")), rng.randint(0, 4), rng.random() < 0.4)


def _steps(rng: random.Random, lags: random.Random, *, num_keys: int, has_clock: bool) -> tuple[Step, ...]:
    steps: list[Step] = []
    newest, watermark, clock, next_id = 0, -100, 0, 0
    disorder = rng.choice((0, 2, 10, 30))
    for _ in range(rng.randint(4, 14)):
        records, timestamps = [], []
        for _ in range(rng.randint(1, rng.choice((3, 10)))):
            newest += rng.randint(0, 4)
            records.append((rng.choice(KEYS[:num_keys]), next_id, rng.randint(0, 9)))
            timestamps.append(newest - rng.randint(0, disorder))
            next_id += 1
        steps.append(Records(tuple(records), tuple(timestamps)))
        if rng.random() < 0.6:
            watermark = max(watermark, newest - rng.randint(0, 15))
            steps.append(Advance(EVENT, watermark))
        if has_clock and rng.random() < 0.7:
            clock += rng.randint(0, 12)
            steps.append(Advance(PROCESSING, clock))
        if rng.random() < 0.12:
            steps.append(Restart(rng.choice((1, 2, 3)), lags.choice((0, 0, 0, lags.randint(1, 20), None))))
    if has_clock:
        steps.append(Advance(PROCESSING, clock + 60))
    steps.append(Advance(EVENT, MAX_WATERMARK))
    return tuple(steps)
