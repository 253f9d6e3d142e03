from tests.flowlet.task.fixtures import make, network, no_time_slice_comes_to_the_rescue, tasks

__all__ = ["make", "network", "no_time_slice_comes_to_the_rescue", "tasks"]
