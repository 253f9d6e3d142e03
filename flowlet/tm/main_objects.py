"""Classes and functions of a job's main program, for pickles in users' hands that name them.

A user's ``open()`` may read a pickle, a trained model say, that names ``__main__.Model``.  The main module of a
TaskManager is ours, so it is asked for a name that it lacks: it then gives that of the job whose task asks.

Side:       shared.
Rules:      what is asked for twice is the same object. a task's thread gets the objects of its own job; other threads
            (of users, of coroutines) get those of the job that came last.
"""

import importlib
import sys
import threading
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Final

from flowlet.serde.deploy_blobs import OPENING, load_object
from flowlet.serde.pickles.class_pickle import classes_stay
from flowlet.serde.pickles.former_classes import find_in

_MAIN: Final = "__main__"
_MAX_OPENED: Final = 256
_UNOPENED: Final = object()


class MainObjects:
    """What the main modules of jobs define, as pickles, opened when they are asked for."""

    def __init__(self) -> None:
        self._of_thread = threading.local()
        self._newest: Mapping[str, bytes] = {}  # Any thread; replaced, never changed.
        self._opened: dict[bytes, Any] = {}  # Any thread; single operations.

    def use(self, objects: Mapping[str, bytes]) -> None:
        """From now on these are the objects of the calling task thread."""
        self._of_thread.objects = objects
        if objects:
            self._newest = objects
            sys.modules[_MAIN].__getattr__ = self._find  # type: ignore[method-assign]  # PEP 562

    def class_of(self, module: str, qualname: str) -> type | None:
        """The class of this name in the program of the calling thread's job, or in a module; None: there is none."""
        objects = getattr(self._of_thread, "objects", {})
        if module == _MAIN and objects:
            outer = qualname.partition(".")[0]
            names = [outer] if outer in objects else objects
            return find_in(SimpleNamespace(**{name: self._find(name) for name in names}), qualname)
        try:
            with OPENING:
                return find_in(importlib.import_module(module), qualname)
        except ImportError:
            return None

    def _find(self, name: str) -> Any:
        pickled = (getattr(self._of_thread, "objects", None) or self._newest).get(name)
        if pickled is None:
            raise AttributeError(
                f"the main module of the job's program has no class or function {name!r} that could be sent with the "
                "job; "
                "define it in a module of its own and import it"
            )
        found = self._opened.get(pickled, _UNOPENED)
        if found is not _UNOPENED:
            return found
        with classes_stay():  # of a class that the task has already its own objects are
            opened = load_object(pickled, f"{name} of the main module")
        if len(self._opened) >= _MAX_OPENED:
            self._opened.clear()
        return self._opened.setdefault(pickled, opened)  # another thread may have been first


MAIN_OBJECTS: Final = MainObjects()
"""Those of this process: there is one main module."""
