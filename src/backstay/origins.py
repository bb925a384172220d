"""The name of an app that was given none: where it was made, as in `reports:app` or `shop.jobs:create_app`.

It must be the same in every process that runs the code, whether that imports the module or runs it as a script.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

from backstay.limits import NAME_LENGTH_MAX

_TOP = "<module>"
_APPS = ("backstay.app", "backstay.sync")


class MadeIn(NamedTuple):
    module: str  # as it was imported
    function: str  # in which the app was made; `<module>`: in none


def made_in() -> MadeIn:
    """Return what makes the app: the first frame outside Backstay."""
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] == "backstay":
        frame = frame.f_back
    return MadeIn(str(frame.f_globals.get("__name__", "")), frame.f_code.co_qualname)


def name_of(made: MadeIn) -> str:
    """Return `module:variable` of an app made at the top of a module, `module:function` of one made in a function."""
    place = made.function.replace(".<locals>", "")
    if made.function == _TOP:
        held = vars(sys.modules[made.module]) if made.module in sys.modules else {}
        place = next((name for name, value in list(held.items()) if _is_made(value, made)), "app")
    return f"{_imported(made.module)}:{place}"[-NAME_LENGTH_MAX:]


def _is_made(value: object, made: MadeIn) -> bool:
    """Return whether a variable holds the app that was made there, or its blocking API. Nothing else is looked into:
    other values may do things when an attribute is read."""
    if not any(each.__module__ in _APPS for each in type(value).__mro__):
        return False
    return getattr(getattr(value, "inner", value), "made_in", None) is made


def _imported(module: str) -> str:
    """Return the name under which a module is imported: one that runs as a script is called `__main__` there."""
    if module != "__main__":
        return module
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name:
        return str(spec.name).removesuffix(".__main__")
    file = getattr(main, "__file__", None)
    return Path(file).stem if file else module
