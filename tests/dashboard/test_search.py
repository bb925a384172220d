"""The search line: what people write becomes conditions of find, or a sentence that helps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstay.core.states import Status
from backstay.dashboard import search

ID = "019a8b3e-1f2a-7c3d-8e4f-5a6b7c8d9e0f"


def test_qualifiers_become_the_conditions_of_find() -> None:
    found = search.parse(
        f"type:embedding status:failed subject:room-4 queue:gpu worker:w1 tag:n by:anna root:{ID} content:h"
    )
    assert found.problems == ()
    assert found.options() == {
        "job_type": "embedding",
        "status": "failed",
        "subject": "room-4",
        "queue": "gpu",
        "worker": "w1",
        "tag": "n",
        "created_by": "anna",
        "root": ID,
        "content_hash": "h",
    }


def test_a_quoted_value_may_have_spaces_quotes_and_colons() -> None:
    found = search.parse(r'subject:"room \"4\": \\ left"  type:a')
    assert found.options() == {"subject": 'room "4": \\ left', "job_type": "a"}


def test_a_value_may_have_colons_without_quotes() -> None:
    assert search.parse("subject:project:7:conversation:9").options() == {"subject": "project:7:conversation:9"}


def test_names_of_the_record_are_understood_too() -> None:
    assert search.parse("job_type:a created_by:b").options() == {"job_type": "a", "created_by": "b"}


def test_a_line_that_is_an_id_means_that_job() -> None:
    assert search.parse(f"  {ID.upper()} ").job_id == ID


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("typo:x", "did you mean type:"),
        ("colour:red", "unknown qualifier 'colour'"),
        ("status:faild", "unknown status 'faild' (did you mean failed?)"),
        ("status:running", "unknown status 'running' (did you mean processing?)"),
        ("status:", "needs a value, for example status:failed"),
        ("root:", "needs a value: the ID of a tree's root job"),
        ("embedding", "needs a qualifier, for example subject:embedding"),
        ("type:a type:b", "given twice"),
        ("root:7", "a full job ID"),
        ("order:random", "created, priority"),
        ("tag:" + "x" * 600, "1 to 512 characters"),
        ("x" * 3_000, "at most 2,000 characters"),
    ],
)
def test_what_cannot_be_meant_is_named_with_what_to_write_instead(line: str, says: str) -> None:
    problems = search.parse(line).problems
    assert len(problems) == 1
    assert says in problems[0].says


def test_every_problem_of_a_line_is_named() -> None:
    assert [each.part for each in search.parse("a:1 type:x b:2").problems] == ["a:1", "b:2"]


def test_a_line_with_problems_is_shown_as_it_was_written() -> None:
    assert search.parse(" type:a  foo:b ").line == "type:a  foo:b"


def test_a_condition_is_changed_and_taken_away() -> None:
    found = search.parse("status:failed type:a")
    assert found.having(status="completed") == "type:a status:completed"
    assert found.having(status=None) == "type:a"
    assert found.having(subject="x y") == 'type:a status:failed subject:"x y"'


_values = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=60)


@given(
    st.fixed_dictionaries(
        {}, optional={"type": _values, "subject": _values, "tag": _values, "by": _values, "content": _values}
    ),
    st.none() | st.sampled_from([*Status]),
)
def test_what_is_written_is_read_again(conditions: dict[str, str], status: Status | None) -> None:
    wanted = dict(conditions) | ({} if status is None else {"status": str(status)})
    found = search.parse(search.written(wanted))
    assert found.problems == ()
    assert found.conditions == wanted
    assert search.parse(found.line).conditions == wanted
