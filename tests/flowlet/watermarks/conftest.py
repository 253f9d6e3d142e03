from tests.flowlet.task.fixtures import no_time_slice_comes_to_the_rescue

__all__ = ["no_time_slice_comes_to_the_rescue"]
