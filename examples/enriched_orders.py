"""Enriches orders with a table of products that comes on a broadcast stream and changes while orders flow.

Every subtask keeps the whole table in broadcast state, so an order needs no key and no look-up in another system.  An
order whose product is not known yet waits in the state of its subtask, until the product comes.

Run it: ``python examples/enriched_orders.py``.  It prints a table of the enriched orders.
"""

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from flowlet.common import Types
from flowlet.datastream import (
    BroadcastProcessFunction,
    CheckpointedFunction,
    DataStream,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    StreamExecutionEnvironment,
)
from flowlet.datastream.state import ListStateDescriptor, MapStateDescriptor

# (order, product, number of pieces).
ORDERS = [(1, "tea", 2), (2, "milk", 1), (3, "tea", 5), (4, "rice", 1), (5, "milk", 3)]
# (product, name, price in cents).
PRODUCTS = [("milk", "oat milk", 199), ("tea", "green tea", 450), ("rice", "red rice", 320)]
TABLE = MapStateDescriptor("products", Types.STRING(), Types.TUPLE([Types.STRING(), Types.INT()]))
WAITING = ListStateDescriptor("waiting orders", Types.PICKLED_BYTE_ARRAY())
Order = tuple[int, str, int]
Enriched = tuple[int, str, int]


class Enrich(BroadcastProcessFunction, CheckpointedFunction):
    """Emits order, name of the product and price of the order."""

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        """Get the orders that waited at the last checkpoint."""
        self._state = context.get_operator_state_store().get_list_state(WAITING)
        self._waiting: list[Order] = list(self._state)

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        """Keep the orders that wait."""
        self._state.update(self._waiting)

    def process_element(self, value: Order, ctx: BroadcastProcessFunction.ReadOnlyContext) -> Iterator[Enriched]:
        """Look up the product of an order."""
        order, product, pieces = value
        found = ctx.get_broadcast_state(TABLE).get(product)
        if found is None:
            self._waiting.append(value)
        else:
            yield order, found[0], pieces * found[1]

    def process_broadcast_element(
        self, value: tuple[str, str, int], ctx: BroadcastProcessFunction.Context
    ) -> Iterator[Enriched]:
        """Keep a product, and emit the orders that waited for it."""
        product, name, price = value
        ctx.get_broadcast_state(TABLE).put(product, (name, price))
        waiting, self._waiting = self._waiting, []
        for order in waiting:
            if order[1] == product:
                yield order[0], name, order[2] * price
            else:
                self._waiting.append(order)


def build(env: StreamExecutionEnvironment) -> DataStream:
    """Return the orders with names and prices."""
    orders = env.from_collection(ORDERS).set_parallelism(1)
    products = env.from_collection(PRODUCTS).set_parallelism(1).broadcast(TABLE)
    return orders.connect(products).process(Enrich())


if __name__ == "__main__":
    table = Table("order", "product", "price")
    environment = StreamExecutionEnvironment.get_execution_environment()
    for row in sorted(build(environment.set_parallelism(2)).execute_and_collect()):
        table.add_row(*map(str, row))
    Console().print(table)
