"""backstay keys"""

from __future__ import annotations

import pytest

from backstay import AuditRecord
from backstay.core import access_keys
from tests.cli.conftest import Cli, Queue
from tests.cli.terminal import on_a_terminal


def trail(queue: Queue) -> list[AuditRecord]:
    return list(queue.do(lambda app: app.audit_trail()))[::-1]


def test_a_key_is_made_shown_once_listed_revoked_and_removed(cli: Cli, queue: Queue) -> None:
    assert "no keys: create one with" in cli("keys").err
    made = cli("keys", "create", "ci", "--scope", "submit", "--scope", "read", "--queue", "mail*", "--expires", "90d")
    text = made.out.strip()
    parsed = access_keys.parse(text)
    assert parsed is not None
    assert made.code == 0
    assert f"{parsed.key_id} (ci): read, submit in mail*, until " in made.err
    assert parsed.secret not in made.err
    row = cli("keys").out.splitlines()[1]
    assert row.startswith(f"{parsed.key_id}  ci    read, submit  mail*   live ")
    assert parsed.secret not in cli("keys").out + cli("keys", "--json").out

    assert cli("keys", "remove", parsed.key_id).code == 2
    assert cli("keys", "revoke", parsed.key_id).out.startswith(f"revoked {parsed.key_id} (ci)")
    assert cli("keys", "--json").document["items"][0]["state"] == "revoked"
    assert cli("keys", "remove", parsed.key_id).out == f"removed {parsed.key_id}\n"
    assert cli("keys", "--json").document == {"items": []}


def test_a_first_key_that_makes_no_others_is_made_with_a_warning(cli: Cli, queue: Queue) -> None:
    warning = "no key with the scope admin covers every queue"
    assert warning in cli("keys", "create", "ci", "--scope", "read").err
    assert warning in cli("keys", "create", "mail", "--scope", "admin", "--queue", "mail*").err
    assert warning not in cli("keys", "create", "boss", "--scope", "admin").err
    assert warning not in cli("keys", "create", "other", "--scope", "read").err


def test_revoking_the_last_admin_says_what_follows(cli: Cli, queue: Queue) -> None:
    one, two = [cli("keys", "create", name, "--scope", "admin", "--json").document["key_id"] for name in ("a", "b")]
    assert "last key with the scope admin" not in cli("keys", "revoke", one).err
    said = cli("keys", "revoke", two).err
    assert "last key with the scope admin" in said and "backstay keys create" in said
    assert "last key with the scope admin" not in cli("keys", "revoke", two).err


def test_with_json_the_key_is_a_field(cli: Cli, queue: Queue) -> None:
    made = cli("keys", "create", "boss", "--scope", "admin", "--by", "ada", "--json").document

    assert access_keys.parse(made["key"]).key_id == made["key_id"]
    assert (made["name"], made["scopes"], made["queues"], made["expires_at"]) == ("boss", ["admin"], [], None)
    assert made["created_by"] == "ada"
    assert cli("keys", "revoke", made["key_id"], "--json").document["state"] == "revoked"
    assert cli("keys", "remove", made["key_id"], "--json").document == {"removed": made["key_id"]}


def test_every_change_of_a_key_is_in_the_audit_trail_without_its_secret(cli: Cli, queue: Queue) -> None:
    made = cli("keys", "create", "ci", "--scope", "read", "--by", "ada", "--json").document
    key_id = made["key_id"]
    cli("keys", "remove", key_id, "--by", "bob")
    cli("keys", "revoke", key_id, "--by", "bob")
    cli("keys", "remove", key_id, "--by", "cleo")

    found = trail(queue)

    assert [(each.action, each.target, each.by, each.outcome) for each in found] == [
        ("key.create", key_id, "ada", "ok"),
        ("key.remove", key_id, "bob", "InvalidOption"),
        ("key.revoke", key_id, "bob", "ok"),
        ("key.remove", key_id, "cleo", "ok"),
    ]
    assert {each.via for each in found} == {"cli"}
    assert found[0].after["scopes"] == ["read"]
    assert found[3].before["state"] == "revoked"
    assert made["key"].split("_")[3] not in str(found)


@pytest.mark.parametrize("verb", ["revoke", "remove"])
def test_an_unknown_id_exits_5(cli: Cli, queue: Queue, verb: str) -> None:
    ran = cli("keys", verb, "nobody")

    assert (ran.code, ran.out) == (5, "")
    assert "no key 'nobody'" in ran.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["ci"], "choose one or more of read, submit, work, admin"),
        (["ci", "--scope", "all"], "one or more of read"),
        (["ci", "--scope", "read", "--queue", "a b"], "not a queue pattern"),
        (["ci", "--scope", "read", "--expires", "soon"], "not a duration"),
        (["ci", "--scope", "read", "--expires", "4000d"], "3,660 days"),
        (["", "--scope", "read"], "name"),
    ],
)
def test_what_makes_no_sense_exits_2_and_makes_no_key(cli: Cli, queue: Queue, arguments: list[str], says: str) -> None:
    ran = cli("keys", "create", *arguments)

    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err
    assert cli("keys", "--json").document == {"items": []}


def test_the_list_fits_a_narrow_terminal(cli: Cli, queue: Queue) -> None:
    cli("keys", "create", "the deployment of the shop", "--scope", "read", "--queue", "a-long-name.of.a.queue*")

    lines = on_a_terminal(60, "keys")

    assert max(map(len, lines)) <= 60
    assert lines[0].split() == ["ID", "NAME", "SCOPES", "QUEUES", "STATE", "EXPIRES"]
