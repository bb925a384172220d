"""SQL in files of named sections, and where each statement is found."""

import ast
import re
from importlib import resources
from pathlib import Path

import pytest

from backstay.engines import sql_files
from backstay.engines.postgres import connection as postgres
from backstay.engines.sqlite import connection as sqlite

ENGINES = ("backstay.engines.postgres", "backstay.engines.sqlite")
POSTGRES = postgres.Statements("backstay")


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_statement_keeps_the_comment_that_follows_its_name(tmp_path: Path) -> None:
    file = write(
        tmp_path, "claim.sql", "-- name: one\n-- The first.\nSELECT 1\n\n-- name: two\nSELECT 2\n    -- inside\n"
    )

    found = sql_files.sections(file)

    assert found.statements == {"one": "-- The first.\nSELECT 1\n", "two": "SELECT 2\n    -- inside\n"}


def test_two_statements_of_one_name_are_refused(tmp_path: Path) -> None:
    files = [write(tmp_path, name, "-- name: get\nSELECT 1\n") for name in ("claim.sql", "read.sql")]

    with pytest.raises(ValueError, match="two statements are named get"):
        sql_files.sections(*files)


def test_a_statement_without_a_name_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path, "read.sql", "SELECT 1\n-- name: get\nSELECT 2\n")

    with pytest.raises(ValueError, match=r"read\.sql begins without a name"):
        sql_files.sections(file)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_file_of_statements_has_the_name_of_a_module_of_its_engine(engine: str) -> None:
    folder = resources.files(engine)
    files = {file.name.removesuffix(".sql") for file in folder.joinpath("sql").iterdir()}

    assert files <= {module.name.removesuffix(".py") for module in folder.iterdir()}


@pytest.mark.parametrize(
    "statements", [{name: POSTGRES[name] for name in POSTGRES.names()}, sqlite.STATEMENTS], ids=ENGINES
)
def test_every_statement_says_what_it_promises(statements: dict[str, str]) -> None:
    assert [name for name, text in statements.items() if not text.startswith("-- ")] == []


# Modules with statements over tables that users declare, over conditions that a search combines, or that come before
# any of our tables: settings of a connection, migrations, calls through a caller's own driver.
COMPOSED = {
    "sqlite": {"connection", "read", "results", "transfer"},
    "postgres": {"insert", "maintenance", "read", "results", "transfer", "triggers", "wakeup"},
}
STATEMENT = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH|CREATE|DROP|ALTER) ")


@pytest.mark.parametrize("engine", ENGINES)
def test_statements_over_our_own_tables_are_in_files(engine: str) -> None:
    modules = [each for each in resources.files(engine).iterdir() if each.name.endswith(".py")]
    found = {
        f"{each.name}:{node.lineno}"
        for each in modules
        if each.name.removesuffix(".py") not in COMPOSED[engine.rpartition(".")[2]]
        for node in ast.walk(ast.parse(each.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and STATEMENT.match(node.value)
    }

    assert found == set()


def test_lists_of_columns_are_filled_in_and_other_braces_stay() -> None:
    lists = {"columns": "a, b", "$b": "$2"}

    assert sql_files.filled("SELECT {columns}, '{}' WHERE b = {$b}", lists) == "SELECT a, b, '{}' WHERE b = $2"


def test_a_list_of_columns_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match=r"there is nothing to put in for \{column\}"):
        sql_files.filled("SELECT {column}", {"columns": "a, b"})


def test_what_statements_share_is_put_into_each_of_them_without_its_comment(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "read.sql",
        "-- name: all\n-- Every one.\n{jobs};\n\n-- part: jobs\n-- What is read.\nSELECT {columns}\nFROM job\n\n"
        "-- name: one\n-- One of them.\n{jobs} WHERE id = $1;\n",
    )

    found = sql_files.complete(sql_files.sections(file), {"columns": "a, b"})

    assert found == {
        "all": "-- Every one.\nSELECT a, b\nFROM job;\n",
        "one": "-- One of them.\nSELECT a, b\nFROM job WHERE id = $1;\n",
    }
