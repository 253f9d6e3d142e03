"""Classes of a program in state that outlives the program: each is written with its name, and found by its name in the
program that runs.

Side:       pure.
Rules:      a class that goes by value (``record_pickle``) is written as its form (name, kind, fields or members) and
            as its definition.  A program that starts from the state of another one takes its own class of that name;
            readers without the program (``flowlet.state_reader``), and a job that goes on after a failure, take the
            definition.  An instance gets its fields by their names.  A field that was added gets its default; one that
            was removed, or has no default, is an error.  A member of an ``Enum`` goes by its name; one that is a plain
            value, too (``IntEnum``), must keep this value.  A class with pickle methods of its own (``__setstate__``,
            ``__reduce__``) decides itself.  A plain class declares no fields: its instances keep their attributes.
Invariants: the unpickler stays C's.  Only where a form has changed do instances pass through Python, in a stand-in for
            the class.
Absent:     functions: they stay those of the program that wrote them.
"""

import dataclasses
import functools
import io
import operator
import pickle
import re
from collections.abc import Callable, Iterable
from enum import Enum, Flag
from pathlib import Path
from typing import Any, Final, NamedTuple

from flowlet.errors import SerdeError
from flowlet.former_names import present_name
from flowlet.serde.pickles.program_pickle import ProgramPickler
from flowlet.serde.pickles.record_pickle import class_of, loads_value, reference_by_value

FindClass = Callable[[str, str], "type | None"]
"""The class of the running program, by its module and its qualified name; None: it has none."""

_CLOUDPICKLE: Final = "cloudpickle.cloudpickle"
_MAKE_CLASS: Final = "_make_skeleton_class"
_MAKE_ENUM: Final = "_make_skeleton_enum"
_SET_CLASS: Final = "_class_setstate"
_ATOMS: Final = (int, str, float, bytes, bool, type(None))
# Files of classes' generated methods.
_GENERATORS: Final = {Path(dataclasses.__file__).parts[-2:], ("attr", "_make.py")}
_PICKLE_METHODS: Final = ("__setstate__", "__reduce__", "__reduce_ex__")
_ADVICE: Final = "keep the class as it was, or start without the state"


class FormerClassError(SerdeError):
    """A class of the program that wrote a state is not in the program that runs, or cannot take its instances.

    The message names class and field.  ``qualname``: of the class.
    """

    def __init__(self, former: "ClassForm", reason: str) -> None:
        super().__init__(f"class {former.shown} of the program {reason}")
        self.qualname = former.qualname


class ClassForm(NamedTuple):
    """The properties of a class that pickles of its instances depend on.

    Attributes:
        module: of the class.
        qualname: of the class.
        kind: which of the kinds below.
        names: of the fields in their order, or of the members of an ``Enum``.
        values: of the members; empty if one of them is no plain value.
        is_listed: whether the state of an instance is a list by position, as of frozen dataclasses with slots.
    """

    module: str
    qualname: str
    kind: str
    names: tuple[str, ...] = ()
    values: tuple[Any, ...] = ()
    is_listed: bool = False

    @property
    def shown(self) -> str:
        """The name of the class in messages."""
        return self.qualname if self.module == "__main__" else f"{self.module}.{self.qualname}"


def form_of(cls: type) -> ClassForm:
    """The form of a class."""
    module, qualname = cls.__module__, cls.__qualname__
    if issubclass(cls, Enum):
        members = list(cls)
        values = tuple(each.value for each in members)
        is_plain = all(isinstance(value, _ATOMS) for value in values)
        return ClassForm(module, qualname, "Enum", tuple(each.name for each in members), values if is_plain else ())
    if dataclasses.is_dataclass(cls):
        is_listed = getattr(getattr(cls, "__setstate__", None), "__module__", None) == dataclasses.__name__
        return ClassForm(
            module, qualname, "dataclass", tuple(each.name for each in dataclasses.fields(cls)), (), is_listed
        )
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return ClassForm(module, qualname, "NamedTuple", tuple(cls._fields))
    if hasattr(cls, "__struct_fields__"):
        return ClassForm(module, qualname, "Struct", tuple(cls.__struct_fields__))
    if hasattr(cls, "__attrs_attrs__"):
        return ClassForm(module, qualname, "attrs class", tuple(each.name for each in cls.__attrs_attrs__))
    return ClassForm(module, qualname, "class")


def find_in(owner: Any, qualname: str) -> type | None:
    """The class of this qualified name in a module; a nested class is also found by its name alone, if only one class
    has that name.

    In the state of older versions of flowlet, nested classes have lost the name of the class around them.
    """
    found = owner
    for name in qualname.split("."):
        found = getattr(found, name, None)
    if isinstance(found, type):
        return found
    nested = {each for each in _nested_in(vars(owner).values()) if each.__name__ == qualname}
    return nested.pop() if len(nested) == 1 else None


def _nested_in(things: Iterable[Any], depth: int = 4) -> Iterable[type]:
    for outer in list(things):
        if isinstance(outer, type) and depth:
            inner = [
                each for each in vars(outer).values() if isinstance(each, type) and each.__module__ == outer.__module__
            ]
            yield from inner
            yield from _nested_in(inner, depth - 1)


# ---------------------------------------------------------------- writing


class FormPickler(ProgramPickler):
    """Writes each class that goes by value as its form and its definition, and members of its enums by name."""

    def reducer_override(self, obj: Any) -> Any:
        """The reduction of an object; NotImplemented: pickle's own."""
        kind = type(obj)
        if issubclass(kind, type):
            reference = reference_by_value(obj)
            if reference is not None:
                return class_as_defined, (tuple(form_of(obj)), reference)
        elif issubclass(kind, Enum) and reference_by_value(kind) is not None:
            return (kind, (obj.value,)) if issubclass(kind, Flag) else (member_by_name, (kind, obj.name))
        return super().reducer_override(obj)


def class_as_defined(_form: tuple[Any, ...], reference: bytes) -> type:
    """The class of a definition, without regard to its form; called only by pickles."""
    return class_of(reference)


def member_by_name(cls: Any, name: str) -> Any:
    """The member of an ``Enum``; called only by pickles."""
    try:
        return cls[name]
    except KeyError:
        raise _no_member(form_of(cls), name) from None


def _no_member(form: ClassForm, name: object) -> FormerClassError:
    return FormerClassError(
        form, f"has no member {name} any more, only {', '.join(form.names)}; keep it, or start without the state"
    )


# ---------------------------------------------------------------- reading


class RunningClasses:
    """Maps classes of the program that wrote a state to classes of the program that runs.

    Threading: one thread.
    """

    def __init__(self, find: FindClass) -> None:
        self._find = find
        self._found: dict[ClassForm, Any] = {}
        self._by_reference: dict[bytes, Any] = {}

    @property
    def are_used(self) -> bool:
        """Whether a class was mapped."""
        return bool(self._found)

    def by_form(self, form: tuple[Any, ...], _reference: bytes = b"") -> Any:
        """The running class, or a stand-in for it that only an unpickler may use; the definition is for readers without
        a program.

        Raises:
            FormerClassError: there is no such class, or its instances cannot be made of the written ones.
        """
        former = ClassForm(*form)
        if former not in self._found:
            self._found[former] = self._mapped(former)
        return self._found[former]

    def by_reference(self, reference: bytes) -> Any:
        """The ``by_form`` of a class in a class table (``record_pickle``)."""
        if reference not in self._by_reference:
            self._by_reference[reference] = self.by_form(form_of(class_of(reference)))
        return self._by_reference[reference]

    def _mapped(self, former: ClassForm) -> Any:
        cls = self._find(former.module, former.qualname)
        if cls is None:
            raise FormerClassError(
                former,
                "is in the state, and is not found by its name: keep it, at the top level of its module, or start "
                "without the state",
            )
        now = form_of(cls)
        if now.kind != former.kind:
            raise FormerClassError(
                former, f"was of the kind {former.kind!r} and is of the kind {now.kind!r} now; {_ADVICE}"
            )
        if now[2:] == former[2:] or _decides_itself(cls, now):
            return cls
        if now.kind == "Enum":
            return _FormerEnum(cls, former)
        removed = [name for name in former.names if name not in now.names]
        if removed:
            is_fixed = now.kind in ("NamedTuple", "Struct")
            advice = "keep it" if is_fixed else "keep it, or say in __setstate__ what becomes of it"
            raise FormerClassError(former, f"has no field {removed[0]!r} any more, which was written: {advice}")
        defaults = _defaults_of(cls, now)
        for name in now.names:
            if name not in former.names and name not in defaults:
                raise FormerClassError(
                    former,
                    f"has a new field {name!r} without a default, and instances that were written without it: give it "
                    "a default",
                )
        match now.kind:
            case "NamedTuple":
                return _former_tuple(cls, former)
            case "Struct":  # values come in the former order
                return lambda *values, **named: cls(**dict(zip(former.names, values, strict=False)), **named)
            case _:
                added = {name: each for name, each in defaults.items() if name not in former.names}
                return _former_instance(cls, former, added)


def _decides_itself(cls: type, form: ClassForm) -> bool:
    """Whether the class has pickle methods that no generator of classes has made."""
    if form.kind not in ("dataclass", "class", "attrs class"):
        return False
    methods = [getattr(cls, name, None) for name in _PICKLE_METHODS]
    own = [each for each, name in zip(methods, _PICKLE_METHODS, strict=True) if each is not getattr(object, name, None)]
    return any(
        Path(getattr(getattr(each, "__code__", None), "co_filename", "")).parts[-2:] not in _GENERATORS for each in own
    )


def _defaults_of(cls: Any, form: ClassForm) -> dict[str, Callable[[Any], Any]]:
    """The makers of defaults, by the names of the fields; each is called with the instance."""
    match form.kind:
        case "dataclass":
            return {each.name: make for each in dataclasses.fields(cls) if (make := _default_of(each)) is not None}
        case "NamedTuple":
            return {name: _always(value) for name, value in cls._field_defaults.items()}
        case "Struct":
            import msgspec

            fields = msgspec.structs.fields(cls)
            return {each.name: _always(None) for each in fields if not each.required}  # the class fills them in
        case _:
            return {each.name: make for each in cls.__attrs_attrs__ if (make := _attrs_default_of(each)) is not None}


def _always(value: Any) -> Callable[[Any], Any]:
    return lambda _: value


def _default_of(field: "dataclasses.Field[Any]") -> Callable[[Any], Any] | None:
    factory = field.default_factory
    if factory is not dataclasses.MISSING:
        return lambda _: factory()
    return None if field.default is dataclasses.MISSING else _always(field.default)


def _attrs_default_of(attribute: Any) -> Callable[[Any], Any] | None:
    default = attribute.default
    if getattr(default, "factory", None) is None:
        return None if type(default).__name__ == "_Nothing" or repr(default) == "NOTHING" else _always(default)
    if default.takes_self:
        return lambda instance: default.factory(instance)
    return lambda _: default.factory()


class _FormerEnum:
    """Stands in for an ``Enum`` whose members have changed."""

    def __init__(self, cls: Any, former: ClassForm) -> None:
        self._cls = cls
        self._former = former

    def __getitem__(self, name: str) -> Any:
        """The member of this name."""
        members = self._cls.__members__
        if name not in members:
            raise _no_member(form_of(self._cls), name)
        found: Any = members[name]
        is_a_value = issubclass(self._cls, int | str | float | bytes)
        if self._former.values and is_a_value:
            value = self._former.values[self._former.names.index(name)] if name in self._former.names else found.value
            if value != found.value:
                raise FormerClassError(
                    self._former,
                    f"has a member {name} with the value {found.value!r}, which was written as {value!r} and stands "
                    "for it as a key; give it back",
                )
        return found

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __call__(self, value: Any) -> Any:
        """The member that had this value, or the flags."""
        former = self._former
        if value in former.values:
            return self[former.names[former.values.index(value)]]
        if issubclass(self._cls, Flag):
            names = [name for name, bit in zip(former.names, former.values, strict=False) if bit & value]
            if sum(former.values[former.names.index(name)] for name in names) == value:
                return functools.reduce(operator.or_, map(self.__getitem__, names), self._cls(0))
        raise _no_member(form_of(self._cls), repr(value))


def _former_tuple(cls: Any, former: ClassForm) -> type:
    """Stands in for a named tuple whose fields have changed."""

    def make(_: type, *values: Any) -> Any:
        return cls(**dict(zip(former.names, values, strict=True)))

    return type(cls.__name__, (), {"__new__": make})


def _former_instance(cls: Any, former: ClassForm, added: dict[str, Callable[[Any], Any]]) -> type:
    """Stands in for a class whose fields have changed: instances of the stand-in become instances of the class when
    they get their state.
    """

    def set_state(self: Any, state: Any) -> None:
        if isinstance(state, list | tuple) and former.is_listed:
            values = dict(zip(former.names, state, strict=True))
        elif isinstance(state, tuple):
            values = {**(state[0] or {}), **(state[1] or {})}
        else:
            values = dict(state)
        object.__setattr__(self, "__class__", cls)
        for name, value in values.items():
            try:
                object.__setattr__(self, name, value)
            except AttributeError as error:
                raise FormerClassError(former, f"takes no attribute {name!r} any more ({error}); {_ADVICE}") from error
        _add_fields(self, added)

    def new_without_fields(_: type) -> Any:
        made = cls.__new__(cls)  # pickle sets no state where there are no fields
        _add_fields(made, added)
        return made

    methods = {"__setstate__": set_state} if former.names else {"__new__": new_without_fields}
    made: type = type(cls)(cls.__name__, (cls,), {"__slots__": (), "__module__": cls.__module__, **methods})
    return made


def _add_fields(instance: Any, added: dict[str, Callable[[Any], Any]]) -> None:
    for name, make in added.items():
        object.__setattr__(instance, name, make(instance))


class FormerUnpickler(pickle.Unpickler):
    """Reads a pickle of ``FormPickler``, or of cloudpickle, with the classes of the program that runs.

    Pickles of cloudpickle, which older versions of flowlet wrote, tell the fields of a class after its first use.  They
    are read twice: first without a change (``FormCollector``), and then with the forms of their classes.

    Args:
        file: the pickle.
        classes: of the program that runs; None: classes are made of their definitions.
        former: forms of the classes in a pickle of cloudpickle, in their order (``FormCollector``); None: there are
            none.
        buffers: see ``pickle.Unpickler``.
    """

    def __init__(
        self, file: Any, classes: RunningClasses | None, former: list[ClassForm] | None, buffers: Any = None
    ) -> None:
        super().__init__(file, buffers=buffers)
        self._classes = classes
        self._former = None if former is None else iter(former)
        self._as_defined: list[Any] = []

    def find_class(self, module: str, name: str) -> Any:
        """The class or function, or its stand-in."""
        module, name = present_name(module, name)
        classes = self._classes
        if classes is not None:
            if module == __name__ and name == class_as_defined.__name__:
                return classes.by_form
            if module == _CLOUDPICKLE and name in (_MAKE_CLASS, _MAKE_ENUM):
                return functools.partial(self._next_class, super().find_class(module, name))
            if module == _CLOUDPICKLE and name == _SET_CLASS:
                return functools.partial(self._set_class, super().find_class(module, name))
        return super().find_class(module, name)

    def _next_class(self, make: Callable[..., Any], *definition: Any) -> Any:
        assert self._classes is not None, "only then is it called"
        assert self._former is not None, "``defines_classes`` has told"
        former = next(self._former)
        try:
            return self._classes.by_form(former)
        except FormerClassError:
            if former.module == "__main__":
                raise
            # For example a class that a library made for the definition of another class.
            made = make(*definition)
            self._as_defined.append(made)
            return made

    def _set_class(self, define: Callable[..., Any], cls: Any, state: Any) -> Any:
        return define(cls, state) if any(each is cls for each in self._as_defined) else cls


_DEFINITIONS: Final = re.compile(f"{_MAKE_CLASS}|{_MAKE_ENUM}".encode())


def defines_classes(pickled: bytes | memoryview) -> bool:
    """Whether a pickle may be of cloudpickle and define classes; if so, ``FormCollector`` must read it first."""
    return _DEFINITIONS.search(pickled) is not None


class FormCollector(pickle.Unpickler):
    """Reads a pickle of cloudpickle without a change, and collects the classes that it defines."""

    def __init__(self, file: Any, buffers: Any = None) -> None:
        super().__init__(file, buffers=buffers)
        self._made: list[type] = []

    def forms(self) -> list[ClassForm]:
        """The forms of the classes, in their order, after ``load``."""
        return list(map(form_of, self._made))

    def find_class(self, module: str, name: str) -> Any:
        """The class or function."""
        found = super().find_class(*present_name(module, name))
        if module != _CLOUDPICKLE or name not in (_MAKE_CLASS, _MAKE_ENUM):
            return found

        def make(*arguments: Any) -> Any:
            made = found(*arguments)
            self._made.append(made)
            return made

        return make


def may_hold_classes(data: bytes | memoryview) -> bool:
    """Whether a value of ``record_pickle.dumps_value`` may hold instances of classes that go by value."""
    return data[:1] == b"\0" or b"cloudpickle" in bytes(data)


def loads_former(data: bytes | memoryview, classes: RunningClasses) -> Any:
    """Read a value of ``record_pickle.dumps_value`` that another program wrote.  Raises FormerClassError."""
    if data[:1] == b"\0":
        return loads_value(data, classes.by_reference)
    forms = None
    if defines_classes(data):
        collector = FormCollector(io.BytesIO(data))
        collector.load()
        forms = collector.forms()
    return FormerUnpickler(io.BytesIO(data), classes, forms).load()
