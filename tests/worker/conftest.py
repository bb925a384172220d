"""The apps of tests/app, whose workers are under test here."""

from tests.app.conftest import app as app
from tests.app.conftest import make_app as make_app
