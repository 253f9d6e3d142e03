"""``RegionOrder``: which regions of a job read the finished results of which others.

Side:       pure.
Invariants: no region reads its own results, nor those of a region that reads its own (there is no cycle).
Source:     Flink ``PipelinedRegionSchedulingStrategy``, ``RestartPipelinedRegionFailoverStrategy``.  Flink starts a
            region as soon as its own inputs are there; here a stage starts when all before it are finished, so that no
            stage waits for the slots of another.
"""

from collections.abc import Callable, Collection, Iterable, Sequence

from netstack.late import dataclass


@dataclass(frozen=True, slots=True)
class RegionOrder:
    """``producers``: by region, the regions whose results it reads when they are complete.

    ``stages``: by region, from 0.
    """

    producers: Sequence[frozenset[int]]
    consumers: Sequence[frozenset[int]]
    stages: Sequence[int]

    @classmethod
    def of(cls, producers: Sequence[Collection[int]]) -> "RegionOrder":
        """The order that follows from who reads whose results."""
        consumers: list[set[int]] = [set() for _ in producers]
        for region, read in enumerate(producers):
            for producer in read:
                consumers[producer].add(region)
        stages = [0] * len(producers)
        left = [len(set(read)) for read in producers]
        ready = [region for region, count in enumerate(left) if not count]
        num_ordered = 0
        while ready:
            region = ready.pop()
            num_ordered += 1
            for consumer in consumers[region]:
                stages[consumer] = max(stages[consumer], stages[region] + 1)
                left[consumer] -= 1
                if not left[consumer]:
                    ready.append(consumer)
        assert num_ordered == len(producers), "regions do not read each other's results in a circle"
        return cls([frozenset(read) for read in producers], [frozenset(each) for each in consumers], stages)

    @property
    def is_staged(self) -> bool:
        """Whether there is more than one stage."""
        return any(self.stages)

    def involved(
        self, failed: Iterable[int], is_gone: Callable[[int], bool], has_begun: Callable[[int], bool]
    ) -> set[int]:
        """The regions that must run again: those that failed, producers whose results they miss, and whoever reads
        results of such regions.

        Args:
            failed: the regions that failed.
            is_gone: whether a region has finished, but its results are no more.
            has_begun: whether a region has attempts.
        """
        found: set[int] = set()
        waiting = list(failed)
        while waiting:
            region = waiting.pop()
            if region in found:
                continue
            found.add(region)
            waiting += [producer for producer in self.producers[region] if is_gone(producer)]
            waiting += [consumer for consumer in self.consumers[region] if has_begun(consumer)]
        return found
