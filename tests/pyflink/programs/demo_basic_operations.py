"""map, filter, flat_map and key_by on rows of JSON."""

import json

from pyflink.common import Row
from pyflink.common.typeinfo import Types
from pyflink.datastream import FilterFunction, FlatMapFunction, MapFunction, StreamExecutionEnvironment

PEOPLE = [
    (1, '{"name": "Flink", "tel": 123, "addr": {"country": "Germany", "city": "Berlin"}}'),
    (2, '{"name": "hello", "tel": 135, "addr": {"country": "China", "city": "Shanghai"}}'),
    (3, '{"name": "world", "tel": 124, "addr": {"country": "USA", "city": "NewYork"}}'),
    (4, '{"name": "PyFlink", "tel": 32, "addr": {"country": "China", "city": "Hangzhou"}}'),
]
ROW = Types.ROW_NAMED(["id", "info"], [Types.INT(), Types.STRING()])


class UpdateTel(MapFunction):
    def map(self, data):
        person = json.loads(data.info)
        person["tel"] += 1
        return Row(data.id, json.dumps(person))


class Abroad(FilterFunction):
    def filter(self, value):
        return json.loads(value[1])["addr"]["country"] != "China"


class Words(FlatMapFunction):
    def flat_map(self, value):
        person = json.loads(value.info)
        yield value.id, person["name"]
        yield value.id, person["addr"]["city"]


def show(title, change):
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    people = env.from_collection(PEOPLE, type_info=ROW)
    print(title)
    change(people).print()
    env.execute(title)


def basic_operations():
    show("map", lambda people: people.map(UpdateTel(), output_type=ROW))
    show("map, not declared", lambda people: people.map(lambda person: (person.id, json.loads(person.info)["tel"])))
    show("filter", lambda people: people.filter(Abroad()))
    show("flat_map", lambda people: people.flat_map(Words(), output_type=Types.TUPLE([Types.INT(), Types.STRING()])))
    show(
        "key_by",
        lambda people: (
            people.map(
                lambda person: (json.loads(person.info)["addr"]["country"], json.loads(person.info)["tel"]),
                output_type=Types.TUPLE([Types.STRING(), Types.INT()]),
            )
            .key_by(lambda pair: pair[0], key_type=Types.STRING())
            .reduce(lambda left, right: (left[0], left[1] + right[1]))
        ),
    )


if __name__ == "__main__":
    basic_operations()
