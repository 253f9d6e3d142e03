"""Objects that the main module of a program defines work in its own process and in children alike.

Each program is a real one.  It runs with parallelism 1, where all is in its process, and with 2, where tasks run in
other processes.
"""

from pathlib import Path
from typing import Any

import pytest

from flowlet.datastream import StreamExecutionEnvironment
from tests.flowlet.client.programs import REPOSITORY, Programs

PARALLELISM = pytest.mark.parametrize("parallelism", [pytest.param(each, marks=pytest.mark.slow) for each in "12"])

_START = """\
import abc, collections, contextlib, datetime, enum, functools, random, sys, threading, typing
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, NamedTuple, NewType, Optional, TypeVar
import attrs, msgspec
from flowlet.datastream import StreamExecutionEnvironment

T = TypeVar("T")
makers = {}

def environment():
    return StreamExecutionEnvironment.get_execution_environment().set_parallelism(int(sys.argv[1]))

def results(function, values):
    with environment().from_collection(values).map(function).execute_and_collect() as found:
        return list(found)

def kind(cls):
    makers[cls.__name__] = lambda: cls(3)
    return cls
"""

_CLASSES = """
@kind
class Slots:
    __slots__ = ("n",)
    def __init__(self, n): self.n = n

@kind
class OneSlot:
    __slots__ = "n"
    def __init__(self, n): self.n = n

@kind
class SlotsOfSlots(Slots):
    __slots__ = ("m", "unset")
    def __init__(self, n):
        super().__init__(n)
        self.m = n + 1

@kind
class FreeSlots(Slots):
    def __init__(self, n):
        super().__init__(n)
        self.free = n

@kind
class PrivateSlots:
    __slots__ = ("__n", "__weakref__")
    def __init__(self, n): self.__n = n
    @property
    def n(self): return self.__n

@kind
class SlotsAndMore:
    __slots__ = ("n", "__dict__")
    def __init__(self, n): self.n = n; self.free = n

@kind
class SlotsWithState:
    __slots__ = ("n",)
    def __init__(self, n): self.n = n
    def __getstate__(self): return [self.n]
    def __setstate__(self, state): [self.n] = state

@kind
class SlotsInt(int):
    __slots__ = ()

@kind
@dataclass(slots=True)
class Data:
    n: int
    tags: list = field(default_factory=list)
    limit: ClassVar[int] = 3

@kind
@dataclass(slots=True, frozen=True, order=True)
class FrozenData:
    n: int

@kind
@dataclass(slots=True)
class DataOfData(Data):
    more: "Optional[DataOfData]" = None

@kind
@dataclass(frozen=True, slots=True)
class GenericData(Generic[T]):
    n: T

class Box(Generic[T]):
    __slots__ = ("n",)
    def __init__(self, n: T): self.n = n

@kind
class IntBox(Box[int]):
    __slots__ = ()

@kind
class Pair(NamedTuple):
    n: int
    text: str = "x"

@kind
class GenericPair(NamedTuple, Generic[T]):
    n: T

@kind
@attrs.define
class Attrs:
    n: int
    @functools.cached_property
    def double(self): return 2 * self.n

@kind
class Struct(msgspec.Struct):
    n: int
    tags: list = []
    def double(self): return 2 * self.n

@kind
class StructOfStruct(Struct, frozen=False, tag="child", rename="camel"):
    my_m: int = 4
    limit: ClassVar[int] = 7

@kind
class KeywordStruct(Struct, kw_only=True, order=True, forbid_unknown_fields=True):
    made: dict = msgspec.field(default_factory=lambda: {"made": 1}, name="MADE")
    def __post_init__(self):
        if self.n < 0:
            self.n = KeywordStruct(1).n

@kind
class Tree(msgspec.Struct, array_like=True):
    n: int
    below: "Optional[Tree]" = None

class Color(enum.Enum):
    RED = 1
    CRIMSON = 1
    BLUE = 2

class Planet(enum.Enum):
    EARTH = (5.9, 6.3)
    MARS = (0.6, 3.3)
    def __init__(self, mass, radius): self.mass = mass; self.radius = radius

class Code(bytes, enum.Enum):
    def __new__(cls, value, label):
        made = bytes.__new__(cls, [value])
        made._value_, made.label = value, label
        return made
    A = (65, "first")
    B = (66, "second")

class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2

class Rights(enum.IntFlag):
    READ = 1
    WRITE = 2
    BOTH = 3

class Size(enum.Enum):
    def __new__(cls):
        made = object.__new__(cls)
        made._value_ = len(cls.__members__) + 1
        return made
    S = ()
    L = ()

class Holiday(datetime.date, enum.Enum):
    NEW_YEAR = 2020, 1, 1

makers |= {str(member): (lambda member=member: member) for member in (
    Color.RED, Color.BLUE, Planet.MARS, Code.B, Level.HIGH, Rights.BOTH, Rights.READ | Rights.WRITE, Size.L, Holiday.NEW_YEAR)}

@kind
class Refused(Exception):
    __slots__ = ("why",)
    def __init__(self, n, *, why="x"):
        super().__init__(f"{n} {why}")
        self.n, self.why = n, why
    def __reduce__(self): return functools.partial(Refused, why=self.why), (self.n,)

class Tagged(type):
    def __new__(cls, name, bases, attributes, *, tag):
        made = super().__new__(cls, name, bases, attributes)
        made.tag = tag
        return made
    def __init__(cls, name, bases, attributes, *, tag): pass

@kind
class WithTag(metaclass=Tagged, tag="t"):
    def __init__(self, n): self.n = n

class Closed(type):
    def __setattr__(cls, name, value): raise AttributeError("closed")

@kind
class WithClosed(metaclass=Closed):
    limit = 3
    def __init__(self, n): self.n = n

class Plugin:
    __slots__ = ("n",)
    def __init_subclass__(cls, *, name):
        cls.name = name
        if not hasattr(cls, "schema"): raise TypeError("a plugin needs a schema")
    def __init__(self, n): self.n = n

@kind
class Reader(Plugin, name="reader"):
    __slots__ = ("m",)
    schema = 1

class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self): ...

@kind
class Square(Shape):
    __slots__ = ("n",)
    def __init__(self, n): self.n = n
    def area(self): return self.n ** 2

class Outer:
    @kind
    class Inner:
        __slots__ = ("n",)
        def __init__(self, n): self.n = n

class Missing:
    def __repr__(self): return "MISSING"
    def __reduce__(self): return "MISSING"

MISSING = Missing()
makers["MISSING"] = lambda: MISSING

@kind
class Named:
    n: NewType("UserId", int)
    def __init__(self, n): self.n = n
"""  # noqa: E501

_CLASSES_WORK = """
def make(name):
    return makers[name]()

def looks(thing):
    attributes = {name: getattr(thing, name, None) for name in ("n", "m", "free", "why", "tags", "label", "mass", "made", "text")}
    return type(thing), thing if isinstance(thing, (int, str, bytes, enum.Enum)) else None, attributes

def shown(thing):
    return f"shown {type(thing).__qualname__} {getattr(thing, 'n', None)!r}"

def give(record):
    name, thing = record
    yield "made there", name, make(name)
    yield thing
    yield shown(thing)
    if name == "MISSING":
        yield "worked there", work(0)

import dataclasses

def work(_):
    return {
        "slots": (hasattr(Slots(1), "__dict__"), hasattr(IntBox(1), "__dict__"), Data.__slots__, PrivateSlots(4).n),
        "data": (repr(DataOfData(1)), FrozenData(1) < FrozenData(2), dataclasses.replace(FrozenData(1), n=5).n, Data.limit),
        "attrs": (Attrs(2).double, attrs.asdict(Attrs(2))),
        "struct": (repr(Struct(1)), Struct(2).double(), Struct(1) == Struct(1), StructOfStruct.limit),
        "struct fields": (KeywordStruct(-1).n, KeywordStruct(1).made, StructOfStruct(1).tags, StructOfStruct(1, my_m=2).my_m),
        "struct options": (KeywordStruct(1) < KeywordStruct(2), Struct.__match_args__, KeywordStruct.__match_args__),
        "struct texts": (msgspec.json.encode(StructOfStruct(1)), msgspec.json.encode(KeywordStruct(1))),
        "struct types": (msgspec.json.decode(b"[1, [2, null]]", type=Tree).below.n,),
        "enums": (Color["CRIMSON"] is Color.RED, Planet.EARTH.mass, Code(66).label, Size(2).name, list(Rights), Holiday.NEW_YEAR.year),
        "hooks": (WithTag.tag, WithClosed.limit, Reader.name, Reader.schema, Square(3).area()),
        "abstract": (isinstance(Square(1), Shape), Shape.__abstractmethods__),
        "generic": (IntBox.__orig_bases__ == (Box[int],), GenericPair[int].__origin__ is GenericPair),
        "names": (Outer.Inner.__qualname__, Outer.Inner.__module__),
        "one of a kind": (MISSING is MISSING, repr(MISSING)),
    }

if __name__ == "__main__":
    before = {name: looks(make(name)) for name in makers}
    methods, here = (Square.area, Struct.double), work(0)
    stream = environment().from_collection([(name, make(name)) for name in makers]).flat_map(give)
    with stream.execute_and_collect() as found:
        came = list(found)
    made = {name: looks(thing) for _, name, thing in (each for each in came if type(each) is tuple and each[0] == "made there")}
    texts = [each for each in came if type(each) is str]
    sent = [each for each in came if type(each) not in (tuple, str)]
    [there] = [each[1] for each in came if type(each) is tuple and each[0] == "worked there"]
    print("came back:", len(made), [name for name in makers if made[name] != before[name]] or "all", len(sent) - len(makers))
    print("are the program's:", {type(each) for each in sent} == {type(make(name)) for name in makers})
    print("are as they were:", methods == (Square.area, Struct.double))
    print("are known there:", sorted(texts) == sorted(shown(make(name)) for name in makers))
    print("work:", [name for name in here if repr(here[name]) != repr(there[name])] or "all")
"""  # noqa: E501

# Beside objects that answer no question, which a job must leave alone.
_FUNCTIONS = """
class OddMeta(type):
    @property
    def __module__(cls): raise RuntimeError("no module")
class Odd(metaclass=OddMeta): pass
class OddModule: pass
OddModule.__module__ = None
class Strange:
    def __getattr__(self, name): raise RuntimeError("no attributes")
class Liar:
    __class__ = property(lambda self: 1 // 0)
class Equal:
    def __eq__(self, other): raise RuntimeError("no comparison")
    __hash__ = None
class Refusing:
    def __reduce__(self): raise RuntimeError("no pickles")
    def __reduce_ex__(self, protocol): raise RuntimeError("no pickles")
def of_no_module(): pass
of_no_module.__module__ = Equal()
strange, liar, equal, refusing = Strange(), Liar(), Equal(), Refusing()
import types
class Lazy(types.ModuleType):
    def __getattr__(self, name): raise ImportError("not installed")
lazy = sys.modules["lazy_of_test"] = Lazy("lazy_of_test")
sys.modules["strange_of_test"] = strange
sys.modules["nothing_of_test"] = None

@functools.cache
def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)

@functools.lru_cache(maxsize=5, typed=True)
def double(n): return 2 * n

@functools.singledispatch
def show(thing): return "any"

@show.register
def _(thing: int): return "int"

@show.register(list)
def _show_list(thing): return "list of " + show(thing[0])

class Report:
    def __init__(self, n): self.n = n
    @functools.cached_property
    def square(self): return self.n ** 2
    @functools.lru_cache
    def cube(self): return self.n ** 3
    @staticmethod
    @functools.cache
    def half(n): return n // 2
    @functools.singledispatchmethod
    def show(self, thing): return "any"
    @show.register
    def _(self, thing: int): return "int"
    def add(self, n): return self.n + n
    add_two = functools.partialmethod(add, 2)

UserId = NewType("UserId", int)
P = typing.ParamSpec("P")

def traced(function: typing.Callable[P, T]) -> typing.Callable[P, T]:
    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T: return function(*args, **kwargs)
    return call

@traced
def user(n: UserId) -> UserId: return UserId(n)

@contextlib.contextmanager
def managed(n):
    yield n

def counted(start):
    @functools.cache
    def count(n): return start + n
    return count

count = counted(5)
plus = functools.partial(lambda a, b: a + b, 5)

def work(n):
    with managed(n) as inside:
        report = Report(inside)
        shown = (show(n), show([n]), show(""), show.dispatch(bool)(1), report.show(1), report.show(""))
        return shown, (report.square, report.square, report.cube(), Report.half(n), report.add_two()), user(n), count(n), plus(n)

if __name__ == "__main__":
    def about(n): return fib.cache_info().currsize, double.cache_parameters(), fib.__name__, show.__name__
    fib(30)
    source = environment().from_collection([[1], 6])
    numbers = source.filter(lambda value: value == 6)
    functions = (fib, double, count, plus, user, work, Report(2).add)
    streams = [numbers.map(function) for function in functions] + [source.filter(lambda value: value != 6).map(show), numbers.map(about)]
    with streams[0].union(*streams[1:]).execute_and_collect() as found:
        came = list(map(repr, found))
    wanted = [repr(function(6)) for function in functions] + [repr(show([1]))]
    print(sorted(came) == sorted([*wanted, repr((7, {"maxsize": 5, "typed": True}, "fib", "show"))]) or came)
"""  # noqa: E501


_UNSENDABLE = r"""
import gzip, io, queue, socket, sqlite3, subprocess, tempfile, weakref
from flowlet.errors import JobSubmissionError

lock, file, binary = threading.Lock(), open("written.txt", "w"), open(__file__, "rb")
text, both, packed = open(__file__), open("written.txt", "a+"), io.TextIOWrapper(gzip.open(__file__))
temporary = tempfile.NamedTemporaryFile("w+")
closed = open(__file__)
closed.close()
connection, database, thread = socket.socket(), sqlite3.connect(":memory:"), threading.Thread(target=print)
generator = (number for number in [1])
tables = {"a": [1, {"deep": lock}]}
weak = weakref.WeakValueDictionary()

class Config:
    def __init__(self): self.lock = threading.RLock()
config = Config()

@dataclass(slots=True)
class Pool:
    connections: list
pool = Pool([database])

class Client:
    shared = None
    def __init__(self): self.waiting = queue.Queue()
    def call(self, value): return value

class Sharing:
    held = lock
    def __call__(self, value): return value

def helper(value): return lock, value
def of_helper(value): return helper(value)
def in_closure():
    connection_of_f = database
    def f(value): return connection_of_f
    return f
def of_standard_input():
    standard = sys.stdin
    def f(value): return standard
    return f
def of_text():
    text_of_f = open(__file__)
    def f(value): return text_of_f
    return f
def by_list(value, lines=[text]): return value
def by_default(value, held=lock): return value
def by_keyword(value, *, held=lock): return value
def with_attribute(value): return value
with_attribute.held = lock
def inside(value):
    def inner(): return lock
    return inner
@functools.cache
def cached(value): return lock
def wrapping(function):
    @functools.wraps(function)
    def call(value): return function(value)
    return call
@wrapping
def wrapped(value): return lock

CASES = {
    "`lock`, a global of `<lambda>` (_thread.lock)": lambda value: lock,
    "`file`, a global of `<lambda>` (_io.TextIOWrapper)": lambda value: file,
    "`binary`, a global of `<lambda>` (_io.BufferedReader)": lambda value: binary,
    "`text`, a global of `<lambda>` (_io.TextIOWrapper)": lambda value: text.read(),
    "`both`, a global of `<lambda>` (_io.TextIOWrapper)": lambda value: both,
    "`packed`, a global of `<lambda>` (_io.TextIOWrapper)": lambda value: packed,
    "`closed`, a global of `<lambda>` (_io.TextIOWrapper)": lambda value: closed,
    "`standard`, in the closure of `f` (_io.TextIOWrapper)": of_standard_input(),
    "`temporary`, a global of `<lambda>` (tempfile._TemporaryFileWrapper)": lambda value: temporary,
    "`text_of_f`, in the closure of `f` (_io.TextIOWrapper)": of_text(),
    "`lines[0]`, a default argument of `by_list` (_io.TextIOWrapper)": by_list,
    "`connection`, a global of `<lambda>` (socket.socket)": lambda value: connection,
    "`database`, a global of `<lambda>` (sqlite3.Connection)": lambda value: database,
    "`thread`, a global of `<lambda>` (threading.Thread)": lambda value: thread,
    "`generator`, a global of `<lambda>` (generator)": lambda value: generator,
    "`weak`, a global of `<lambda>` (weakref.WeakValueDictionary)": lambda value: weak,
    "`tables['a'][1]['deep']`, a global of `<lambda>` (_thread.lock)": lambda value: tables,
    "`config.lock`, a global of `<lambda>` (_thread.RLock)": lambda value: config,
    "`pool.connections[0]`, a global of `<lambda>` (sqlite3.Connection)": lambda value: pool,
    "`lock`, a global of `helper` (_thread.lock)": of_helper,
    "`connection_of_f`, in the closure of `f` (sqlite3.Connection)": in_closure(),
    "`held`, a default argument of `by_default` (_thread.lock)": by_default,
    "`held`, a default argument of `by_keyword` (_thread.lock)": by_keyword,
    "`with_attribute.held`, an attribute of the function (_thread.lock)": with_attribute,
    "`lock`, a global of `inside` (_thread.lock)": inside,
    "`lock`, a global of `cached` (_thread.lock)": cached,
    "`lock`, a global of `wrapped` (_thread.lock)": wrapped,
    "`args[0]`, an argument of a `functools.partial` (_thread.lock)": functools.partial(lambda held, value: value, lock),
    "`held`, an argument of a `functools.partial` (_thread.lock)": functools.partial(lambda value, held: value, held=lock),
    "`waiting`, an attribute of a `Client` (queue.Queue)": Client().call,
    "`Sharing.held`, an attribute of the class (_thread.lock)": Sharing(),
}

large = {"large": [bytes(40_000_000)], "small": [b"x"]}
others = {a: {b: {c: b"%d" % (a * b * c) + bytes(900) for c in range(36)} for b in range(36)} for a in range(36)}  # no long containers

def look_up(key): return large[key], others[1][1][1]

def size_of(key): return len(look_up(key)[0])

if __name__ == "__main__":
    for words, function in CASES.items():
        try:
            results(function, [1])
            print("was sent:", words)
        except JobSubmissionError as error:
            if f"operator 'Map' cannot be sent to a TaskManager: {words}: " not in str(error):
                print(error)
    for held in (lock, text):
        try:
            results(abs, [Pool([held])])
        except Exception as error:
            print(type(error).__name__, error)
    output = sys.stdout
    print(results(lambda value: (output is sys.stdout, value), [1]))
    if sys.argv[1] == "1":  # nothing is sent, whatever the parallelism
        try:
            stream = environment().from_collection([1]).map(size_of, output_type=None)
            stream.rebalance().map(lambda key: look_up(key)).set_parallelism(3).print()
            stream.rebalance().map(lambda key: (look_up(key), key)).set_parallelism(4).name("second").print()
            stream.get_execution_environment().execute("large")
        except JobSubmissionError as error:
            print(error)
"""  # noqa: E501

_CLASSES_STAY = """
seen, table = [], {}

class Store:
    held = seen
    total = 0
    def put(self, value): table[value] = value
    @staticmethod
    def note(value): seen.append(value)
    @classmethod
    def known(cls): return table
    @property
    def all(self): return table
    @functools.singledispatchmethod
    def show(self, value): return table
class Special(Store):
    def put(self, value): super().put(value)
class Color(enum.Enum):
    RED = 1
    def __init__(self, number): self.names = [number]
    def known(self): return table
class Struct(msgspec.Struct):
    n: int = 0
    def known(self): return table
class Meta(type):
    def known_to_all(cls): return table
class Closed(metaclass=Meta):
    def __setattr__(self, name, value): raise AttributeError(name)
    def known(self): return table
class Later(abc.ABC):
    @abc.abstractmethod
    def known(self): return table

KINDS = Store, Special, Color, Struct, Meta, Closed, Later

def work(value):
    Special().put(value)
    Store.note(value)
    found = Store().all, Store.known(), Store().show(1), Color.RED.known(), Struct().known(), Closed.known_to_all(), Closed().known()
    return value in table, len(seen), all(each is table for each in found), issubclass(Later, abc.ABC)

def looks(): return [{name: value for name, value in vars(each).items() if name != "_abc_impl"} for each in KINDS]

if __name__ == "__main__":
    before, names = looks(), Color.RED.names
    for _ in range(3 - int(sys.argv[1])):  # in the program's process the second run has globals of its own
        with environment().from_collection([1]).map(work).execute_and_collect() as found:
            for each in found:
                print(each)
                Store.total += 1
    before[0]["total"] = 3 - int(sys.argv[1])
    after = looks()
    print([(cls, name) for cls, old, new in zip(KINDS, before, after) for name in old if old[name] is not new.get(name)])
    print([set(old) ^ set(new) for old, new in zip(before, after)] == [set()] * len(KINDS), Color.RED.names is names)
    Special().put(5)
    Store.note(6)
    print(table, seen, Store.held is seen, Color.RED.known() is Struct().known() is Closed.known_to_all() is Closed().known() is table)
"""  # noqa: E501

_SHARED = """
import os, numpy, pyarrow
from flowlet.common import Configuration

table = {"large": [bytes(10_000_000)], "text": "\u00e4" * 2_000_000}
array, column = numpy.arange(2_000_000), pyarrow.array(range(1_000_000))
words = {number: "word %065d" % number for number in range(120_000)}
words["itself"] = [words]

def look_up(value):
    assert words["itself"][0] is words
    return len(table["large"][0]), len(words), column[value].as_py(), int(array[3])

def once(value):
    array[3] += 1
    if not os.path.exists("failed"):
        open("failed", "w").close()
        raise ValueError("once")
    return value

def write(found):
    with open("found", "w") as file: file.write(repr(found))

import secrets, warnings
from random import random as draw, randint, shuffle
from numpy.random import rand

def drawn(_): return draw(), randint(1, 10 ** 9), rand(), secrets.choice(range(10 ** 9)), random.random()

rng, wide, system = random.Random(7), numpy.random.default_rng(7), random.SystemRandom()
def closed():
    inner = numpy.random.RandomState(7)
    return lambda _: (rng.random(), wide.random(), inner.random(), system.random())

if __name__ == "__main__":
    stream = environment().from_collection([1]).map(lambda value: (value, look_up(value)))
    settings = Configuration()
    settings.set_string("restart-strategy.type", "fixed-delay")
    settings.set_string("restart-strategy.fixed-delay.delay", "1 ms")
    stream.get_execution_environment().configure(settings)
    stream = stream.key_by(lambda pair: look_up(pair[0])).map(lambda pair: (*pair, look_up(pair[0])))
    stream.rebalance().map(lambda found: (*once(found), look_up(found[0]))).map(write).print()
    stream.get_execution_environment().execute("shared")
    print("program:", array[3], "task:", open("found").read())
    warnings.simplefilter("always")
    def run(function):
        with warnings.catch_warnings(record=True) as caught:
            with environment().from_collection([1] * 10).rebalance().map(function).execute_and_collect() as found:
                numbers = [len(set(each)) for each in zip(*found)]
        print(numbers, [str(each.message).partition(", which")[0] for each in caught], {each.filename == __file__ for each in caught})
    run(drawn)
    run(closed())
"""  # noqa: E501


def lines_of(programs: Programs, text: str, parallelism: str) -> list[str]:
    """Return the output of a program with the beginning that all programs here have."""
    return programs.lines(_START + text, "program.py", parallelism)


@PARALLELISM
def test_objects_of_a_programs_classes_come_back_as_they_are(parallelism: str, programs: Programs) -> None:
    """Classes may have slots, metaclasses or hooks, be dataclasses, named tuples, structs, enumerations or exceptions,
    abstract or generic.
    """
    assert lines_of(programs, _CLASSES + _CLASSES_WORK, parallelism)[:4] == [
        "came back: 36 all 0",
        "are the program's: True",
        "are as they were: True",
        "are known there: True",
    ]


@PARALLELISM
def test_a_programs_classes_work_in_its_functions(parallelism: str, programs: Programs) -> None:
    """A program's classes keep the attributes that its text, Python, dataclasses, attrs, enum and msgspec gave them."""
    assert lines_of(programs, _CLASSES + _CLASSES_WORK, parallelism)[4:] == ["work: all"]


@PARALLELISM
def test_a_programs_classes_are_as_they_were_after_a_job(parallelism: str, programs: Programs) -> None:
    """Methods, class attributes and metaclasses: in the program they see its globals, in a task those of its vertex.

    What the program sets itself while a job runs stays.
    """
    *of_tasks, changed, others, own = lines_of(programs, _CLASSES_STAY, parallelism)

    assert set(of_tasks) == {"(True, 1, True, True)"}
    assert (changed, others, own) == ("[]", "True True", "{5: 5} [6] True True")


@PARALLELISM
def test_functions_that_functools_made_run_beside_objects_that_answer_no_question(
    parallelism: str, programs: Programs
) -> None:
    """A cache arrives empty, and is one for all functions of a chain that refer to it.

    Classes without a module, or whose ``__module__`` raises, objects whose attributes raise, and modules that cannot be
    imported disturb no job.
    """
    assert lines_of(programs, _FUNCTIONS, parallelism) == ["True"]


@PARALLELISM
def test_what_cannot_be_sent_is_named_by_its_variable(parallelism: str, programs: Programs) -> None:
    """The error names the variable and the function that refers to it, in equal words whatever the parallelism."""
    lock, text, output, *_ = lines_of(programs, _UNSENDABLE, parallelism)

    assert (
        "`connections[0]`, an attribute of a `Pool` (_thread.lock): TypeError: cannot pickle '_thread.lock' object"
        in lock
    )  # a record of a source
    assert (
        "`connections[0]`, an attribute of a `Pool` (_io.TextIOWrapper): TypeError: cannot pickle '_io.TextIOWrapper' "
        "object" in text
    )
    assert output == "[(True, 1)]"  # it goes by name


@pytest.mark.slow
def test_a_job_that_is_too_large_names_the_variable_and_the_remedy(programs: Programs) -> None:
    line = lines_of(programs, _UNSENDABLE, "1")[-1]

    assert line.startswith("the functions of job 'large' have 1")
    assert "of them are `others`, a global of `look_up` (dict); " in line
    assert (
        "more vertices are as large: each has its own copy of what consists of many small objects; read large data in "
        "open()" in line
    )
    assert "env.register_cached_file()" in line


@PARALLELISM
def test_what_is_large_and_several_vertices_refer_to_is_sent_once(parallelism: str, programs: Programs) -> None:
    """Bytes, arrays of numpy and pyarrow, a dictionary of many small objects, which a key selector has, too: four
    copies are refused.

    Each vertex has copies of its own, and new ones after a restart.
    """
    lines = lines_of(programs, _SHARED, parallelism)

    assert "program: 3 task: (1, " + 2 * "(10000000, 120001, 1, 3), " + "(10000000, 120001, 1, 4))" in lines


@PARALLELISM
def test_subtasks_draw_random_numbers_of_their_own(parallelism: str, programs: Programs) -> None:
    """Subtasks draw from the generator that a process shares.

    The program is warned of a generator that is copied to all subtasks with its state.
    """
    shared, own = lines_of(programs, _SHARED, parallelism)[-2:]

    assert shared == "[10, 10, 10, 10, 10] [] set()"
    names = ["`rng`, a global of `<lambda>`", "`wide`, a global of `<lambda>`", "`inner`, in the closure of `<lambda>`"]
    kinds = ["random.Random", "numpy.random._generator.Generator", "numpy.random.mtrand.RandomState"]
    if parallelism == "1":
        assert own == "[10, 10, 10, 10] [] set()"
    else:
        assert own.startswith("[5, 5, 5, 10] ")
        assert all(
            f"vertex 'Map': {name} ({kind}) is copied to 2 subtasks" in own
            for name, kind in zip(names, kinds, strict=True)
        )
        assert own.endswith("{True}")


def test_functions_are_pickled_when_the_job_starts(environment: StreamExecutionEnvironment) -> None:
    """The documentation's example gives the results that it prints beside PyFlink's, and its remedy gives those of
    PyFlink.
    """
    text = (REPOSITORY / "docs/coming-from-pyflink.md").read_text()
    example = text.partition("<!-- pickled at execute: begin -->\n```python\n")[2].partition("```")[0]
    names: dict[str, Any] = {"StreamExecutionEnvironment": _Of(environment)}
    exec(example, names)  # the example itself

    with names["late"][0].union(names["late"][1]).execute_and_collect() as late:
        of_loop = sorted(late)
    with names["early"][0].union(names["early"][1]).execute_and_collect() as early:
        bound = sorted(early)

    assert (of_loop, bound) == ([3, 3, 30, 30], [2, 3, 20, 30])
    assert "PyFlink: 2, 20, 3, 30; flowlet: 3, 30, 3, 30" in example


class _Of:
    """Gives the environment of a cluster that runs."""

    def __init__(self, environment: StreamExecutionEnvironment) -> None:
        self._environment = environment

    def get_execution_environment(self) -> StreamExecutionEnvironment:
        return self._environment


_IMPORTED = """
from dataclasses import dataclass

from flowlet.datastream import StreamExecutionEnvironment
import sys

@dataclass
class Twice:
    value: int

def twice(value):
    return Twice(2 * value)

env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(int(sys.argv[1]))
stream = env.from_collection([1, 2]).map(twice).map(lambda found: (found.value, isinstance(found, Twice)))
with stream.execute_and_collect() as results:
    print(sorted(results))
"""


@PARALLELISM
@pytest.mark.parametrize("module", ["pipeline.py", "pipeline/__init__.py", "pipeline/steps.py"])
def test_a_module_may_execute_a_job_while_it_is_imported(
    module: str, parallelism: str, programs: Programs, tmp_path: Path
) -> None:
    """Tasks do not import such a module: in the program's process they would wait for its end, in others execute it
    again.
    """
    (tmp_path / module).parent.mkdir(exist_ok=True)
    if module == "pipeline/steps.py":
        (tmp_path / "pipeline/__init__.py").write_text("import pipeline.steps\n")
    (tmp_path / module).write_text(_IMPORTED)

    program = f"import sys\n\nsys.path.insert(0, {str(tmp_path)!r})\nimport pipeline\n"

    assert programs.lines(program, "program.py", parallelism) == ["[(2, True), (4, True)]"]
