from tests.flowlet.task.fixtures import network, no_time_slice_comes_to_the_rescue, tasks

__all__ = ["network", "no_time_slice_comes_to_the_rescue", "tasks"]
