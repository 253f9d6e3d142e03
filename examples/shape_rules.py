"""Looks for patterns in a stream of items while the patterns come in on another stream: Flink's example of broadcast
state.

A rule names two shapes.  It matches where an item of the second shape follows one of the first shape among the items of
one colour.  Every subtask sees every rule; each colour's items are in one subtask.  The shapes that a colour had are
kept, so that a rule that comes late is held against them, too: the matches do not depend on which stream is faster.

Run it: ``python examples/shape_rules.py``.  It prints a table of the matches.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from rich.console import Console
from rich.table import Table

from flowlet.common import Types
from flowlet.datastream import DataStream, KeyedBroadcastProcessFunction, RuntimeContext, StreamExecutionEnvironment
from flowlet.datastream.state import ListStateDescriptor, MapStateDescriptor

# (colour, shape).
ITEMS = [
    ("red", "square"),
    ("blue", "circle"),
    ("red", "circle"),
    ("blue", "square"),
    ("red", "square"),
    ("blue", "circle"),
    ("red", "circle"),
    ("green", "circle"),
]
# (name, first shape, second shape).
SENT_RULES = [("corners first", "square", "circle"), ("round first", "circle", "square"), ("twins", "circle", "circle")]
RULES = MapStateDescriptor("rules", Types.STRING(), Types.TUPLE([Types.STRING(), Types.STRING()]))
SHAPES = ListStateDescriptor("shapes", Types.STRING())


class MatchRules(KeyedBroadcastProcessFunction):
    """Emits the name of the rule, the colour, and the number of the item that completed the match among the items of
    its colour.
    """

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the state of a colour."""
        self._shapes = runtime_context.get_list_state(SHAPES)

    def process_element(
        self, value: tuple[str, str], ctx: KeyedBroadcastProcessFunction.ReadOnlyContext
    ) -> Iterator[tuple[str, str, int]]:
        """Hold an item and the one before it against all rules."""
        self._shapes.add(value[1])
        shapes = list(self._shapes)
        for name, rule in ctx.get_broadcast_state(RULES).items():
            if tuple(shapes[-2:]) == rule:
                yield name, ctx.get_current_key(), len(shapes)

    def process_broadcast_element(
        self, value: tuple[str, str, str], ctx: KeyedBroadcastProcessFunction.Context
    ) -> Iterator[tuple[str, str, int]]:
        """Keep a rule, and hold the items so far of all colours against it."""
        name, first, second = value
        ctx.get_broadcast_state(RULES).put(name, (first, second))
        matches = []

        def match(colour: Any, shapes: Any) -> None:
            for number, pair in enumerate(pairwise(shapes), 2):
                if pair == (first, second):
                    matches.append((name, colour, number))

        ctx.apply_to_keyed_state(SHAPES, match)
        yield from matches


def build(env: StreamExecutionEnvironment) -> DataStream:
    """Return the matches: name of the rule, colour, number of the item."""
    items = env.from_collection(ITEMS).set_parallelism(1).key_by(lambda item: item[0])
    rules = env.from_collection(SENT_RULES).set_parallelism(1).broadcast(RULES)
    return items.connect(rules).process(MatchRules())


if __name__ == "__main__":
    table = Table("rule", "colour", "item")
    environment = StreamExecutionEnvironment.get_execution_environment()
    for row in sorted(build(environment.set_parallelism(2)).execute_and_collect()):
        table.add_row(*map(str, row))
    Console().print(table)
