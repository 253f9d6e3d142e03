"""``EdgeFunctions``: the life cycle of key selectors and partitioners, which belong to the ways between operators and
to no operator.

Side:       task.
Invariants: a function is opened before the first record leaves the chain, and closed once; also if others fail.  Only
            functions that override ``open`` or ``close`` are in here.
Source:     PyFlink opens them with the operators that it adds for ``key_by`` and ``partition_custom``: those run beside
            the operator that emits the records, as here.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from flowlet.chain.operator_chain import ChainedOperator
from flowlet.chain.stream_operator import OperatorContext
from flowlet.datastream.user_functions.function import has_life_cycle
from flowlet.graph.partitioner import Custom, KeyGroups
from flowlet.operators.user_function import RuntimeContext, UserFunction
from flowlet.task.task_environment import OutputEdge

_NO_STATE: Final = "key selectors and partitioners have no keyed state"


class EdgeFunctions:
    """Opens and closes the functions of a task's edges, those inside its chain included; task thread.

    Args:
        chain: the operators, head first.
        outputs: the edges that leave the task.
        contexts: of the operators; a function gets that of the operator whose records it sees.
    """

    def __init__(
        self, chain: Sequence[ChainedOperator], outputs: Sequence[OutputEdge], contexts: Sequence[OperatorContext]
    ) -> None:
        # By identity: operators of one chain may share a selector.
        found = {
            id(function): (function, method, contexts[index]) for function, method, index in _functions(chain, outputs)
        }
        self._functions = [(UserFunction(function, method), ctx) for function, method, ctx in found.values()]
        self._num_open = 0

    def __repr__(self) -> str:
        return f"<EdgeFunctions {self._num_open} of {len(self._functions)} open>"

    def open(self) -> None:
        """Open the functions.  Raises UserFunctionError, which names the operator that emits the records."""
        for function, ctx in self._functions:
            self._num_open += 1  # before the call: what a failing open() took must be given back, too
            function.run("open", RuntimeContext(ctx, _NO_STATE), ctx=ctx)

    def close(self) -> None:
        """Close the functions that were opened; idempotent.

        Raises UserFunctionError: the first error, after the others were closed.
        """
        first: Exception | None = None
        while self._num_open:
            self._num_open -= 1
            function, ctx = self._functions[self._num_open]
            try:
                function.run("close", ctx=ctx)
            except Exception as error:  # noqa: BLE001  # raised below, after the other functions
                first = first or error
        if first is not None:
            raise first


def _functions(chain: Sequence[ChainedOperator], outputs: Sequence[OutputEdge]) -> Iterator[tuple[Any, str, int]]:
    """Each function with a life cycle, its method, and the index of the operator whose records it sees."""
    found = [(item.key_selector, "get_key", item.parent) for item in chain]
    for edge in outputs:
        match edge.partitioner:
            case KeyGroups(key_selector=selector):
                found.append((selector, "get_key", edge.source_operator))
            case Custom(partition_function=partitioner, selector=selector):
                found += [(selector, "get_key", edge.source_operator), (partitioner, "partition", edge.source_operator)]
            case _:
                pass
    return ((function, method, index) for function, method, index in found if has_life_cycle(function))
