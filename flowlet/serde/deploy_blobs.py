"""Serializes operator chains and partitioners for their way from the client to a TaskManager.

Side:       shared.  Each task opens its blobs on its own thread.
Invariants: only one blob is opened at a time: opening imports modules, and two threads that enter a circle of imports at different places
            deadlock (Python detects that and fails one of them).
            Only a client writes blobs.  Only a TaskManager, or a producer of a remote gate, opens them, and only after the JobManager
            that sent them has proved who it is.  No other part of the control plane is a pickle.
Rules:      functions of ``__main__``, lambdas and nested functions are pickled by value, those of modules by name.
"""

import io
import sys
import threading
import warnings
from typing import TYPE_CHECKING, Any, Final

import cloudpickle

from flowlet.errors import FlowletError, JobSubmissionError
from flowlet.serde.pickles import program_pickle
from flowlet.serde.pickles.pickle_parts import FoundPart, describe_unpicklable, find_largest, find_objects

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowlet.chain.operator_chain import ChainedOperator
    from flowlet.common.typeinfo import TypeInformation
    from flowlet.graph.job_graph import Chained
    from flowlet.graph.partitioner import Partitioner


_ADVICE: Final = "make what cannot be pickled in open() of a function class, which runs on the TaskManager"
OPENING: Final = threading.RLock()
"""Held while modules of users are imported; no other lock of ours is taken under it."""


class DeploymentError(FlowletError):
    """A blob could not be opened; raised ``from`` the cause."""


class SharedGeneratorWarning(UserWarning):
    """A generator of random numbers is copied to several subtasks, which draw the same numbers."""


def dump_chain(chain: "Sequence[Chained]", vertex: str, parallelism: int = 1) -> bytes:
    """Serialize the operators of a vertex; warns of generators of random numbers that its subtasks would have copies of.

    Raises:
        JobSubmissionError: an operator cannot be pickled; the message names it, the variable and the reason.
    """
    file, operators = io.BytesIO(), list(chain)
    pickler = program_pickle.ProgramPickler(file)
    try:
        pickler.dump(operators)
    except Exception as error:
        operator, reason = _first_unpicklable(chain, error)
        raise JobSubmissionError(f"vertex {vertex!r}: {operator} cannot be sent to a TaskManager: {reason}; {_ADVICE}") from error
    if pickler.generators and parallelism > 1:
        _warn_of_copies(find_objects(operators, pickler.generators), vertex, parallelism)
    return file.getvalue()


def _warn_of_copies(generators: "Sequence[FoundPart]", vertex: str, parallelism: int) -> None:
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("flowlet."):
        level, frame = level + 1, frame.f_back
    for generator in generators:
        if generator.where:
            warnings.warn(
                f"vertex {vertex!r}: {generator} is copied to {parallelism} subtasks, which all draw the same numbers from it; make it in "
                "open() of a function class, with runtime_context.get_index_of_this_subtask() in its seed",
                SharedGeneratorWarning,
                stacklevel=level,
            )


def dump_partitioner(partitioner: "Partitioner", edge: str) -> bytes:
    """Serialize the partitioner of an edge, with the user's key selector in it.

    Raises:
        JobSubmissionError: it cannot be pickled; the message names the edge and the reason.
    """
    try:
        return program_pickle.dumps(partitioner)
    except Exception as error:
        reason = describe_unpicklable(partitioner, error)
        raise JobSubmissionError(f"edge {edge!r}: its partitioner cannot be sent to a TaskManager: {reason}") from error


def dump_type(type_info: "TypeInformation") -> bytes:
    """Serialize the type of a remote gate's records."""
    return program_pickle.dumps(type_info)


def load_type(blob: bytes, gate: str) -> "TypeInformation":
    """Open the type of a gate's records, in a producer outside the cluster.  Raises as ``load_chain``."""
    type_info: TypeInformation = _load(blob, f"the type of gate {gate!r}")
    return type_info


def load_gate_partitioner(blob: bytes, gate: str) -> "Partitioner":
    """Open a gate's partitioner, which routes the records of a producer outside the cluster.  Raises as ``load_chain``."""
    partitioner: Partitioner = _load(blob, f"the key selector of gate {gate!r}")
    return partitioner


def load_chain(blob: bytes, task_name: str) -> "list[ChainedOperator]":
    """Open a chain of operators.  It imports the user's modules and may take long: never call it on the event loop.

    Raises:
        DeploymentError: a module is missing here, or the user's code raised while it was imported or unpickled.
    """
    chain = _load(blob, f"the operators of task {task_name!r}")
    assert isinstance(chain, list), "written by dump_chain"
    return chain


def load_partitioner(blob: bytes, task_name: str) -> "Partitioner":
    """Open the partitioner of an output.  Raises as ``load_chain``."""
    partitioner: Partitioner = _load(blob, f"the partitioner of an output of task {task_name!r}")
    return partitioner


def load_object(blob: bytes, what: str) -> Any:
    """Open one object of the user's program; ``what`` is for people.  Raises as ``load_chain``."""
    return _load(blob, what)


def _load(blob: bytes, what: str) -> Any:
    try:
        with OPENING:
            return cloudpickle.loads(blob)
    except ModuleNotFoundError as error:
        hint = "install it where the TaskManager runs, or import it at the top of a program that lies in the same folder"
        raise DeploymentError(f"{what} need the module {error.name!r}, which this TaskManager does not find: {hint}") from error
    except Exception as error:
        raise DeploymentError(f"{what} could not be loaded: {_describe(error)}") from error


def describe_largest(chain: "Sequence[Chained]") -> str:
    """What makes the pickle of a vertex large, for an error message."""
    found = find_largest(list(chain))
    return f"{found.num_bytes} of them are {found}" if found.where else "in many small parts"


def _first_unpicklable(chain: "Sequence[Chained]", error: Exception) -> tuple[str, str]:
    """The first operator that cannot be pickled on its own, and why, for an error message."""
    for chained in chain:
        try:
            program_pickle.dumps(chained)
        except Exception as problem:  # noqa: BLE001 - any exception marks the operator
            return f"operator {chained.operator.name!r}", describe_unpicklable(chained, problem)
    return "its chain of operators", describe_unpicklable(list(chain), error)


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
