from tests.flowlet.task.fixtures import network

__all__ = ["network"]
