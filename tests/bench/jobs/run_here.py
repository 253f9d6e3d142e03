"""Runs a ``Work`` in this process."""

from contextlib import closing

from bench.jobs.work import Collected, Work, imported
from flowlet.datastream import StreamExecutionEnvironment


def run_here(work: Work) -> Collected:
    """Return the results of ``work``, with one subtask of each operator."""
    collected = Collected(work.outputs)
    with closing(StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)) as environment:
        inputs = [environment.from_collection(list(each.records())) for each in work.inputs]
        collected.add(list(imported(f"{work.streams}:{work.program}")(*inputs).execute_and_collect()))
    return collected
