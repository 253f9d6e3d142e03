"""The head of a task's chain, for tests of inputs."""

from flowlet.records import Chunk, ControlElement, StreamElement


class Head:
    """Notes everything in order."""

    def __init__(self) -> None:
        self.seen: list[StreamElement] = []

    def process_chunk(self, chunk: Chunk) -> None:
        self.seen.append(chunk)

    def process_some(self, chunk: Chunk) -> int:
        self.process_chunk(chunk)
        return len(chunk)

    def process_control(self, element: ControlElement) -> None:
        self.seen.append(element)

    @property
    def values(self) -> list[object]:
        return [value for element in self.seen if isinstance(element, Chunk) for value in element.values]
