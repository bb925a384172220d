"""The suite that ships is whole: what an engine imports is everything that was written."""

import importlib
import inspect
import pkgutil

from backstay.testing import conformance


def test_every_test_class_of_the_suite_is_given_to_engines() -> None:
    written = {
        name
        for module in pkgutil.iter_modules(conformance.__path__)
        for name, found in inspect.getmembers(importlib.import_module(f"{conformance.__name__}.{module.name}"))
        if name.startswith("Test") and inspect.isclass(found)
    }

    assert sorted({*written, "many"}) == sorted(conformance.__all__)


def test_a_failed_assert_in_any_module_of_the_suite_says_why() -> None:
    modules = {module.name for module in pkgutil.iter_modules(conformance.__path__)}

    assert modules == set(conformance._MODULES)
