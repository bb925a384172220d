"""Rules, as a user starts it: to its end, killed in the middle, and a search after it."""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backstay import Backstay
from tests.examples.conftest import ROOT
from tests.examples.ollama import Ollama
from tests.examples.rules_fixtures import app as app
from tests.examples.rules_fixtures import database_url as database_url
from tests.examples.rules_fixtures import embedded, insert
from tests.examples.rules_fixtures import ollama as ollama
from tests.examples.rules_fixtures import sql as sql

RUN = ROOT / "examples/rules/run"
RULES = 24


@pytest.fixture
def own_server(example_environment: dict[str, str]) -> Iterator[dict[str, str]]:
    """The environment of someone who has no server. Its folder is not pytest's, which nobody else may look into."""
    folder = Path(tempfile.mkdtemp(prefix="backstay-rules-test-"))
    given = {name: value for name, value in example_environment.items() if name != "DATABASE_URL"}
    yield {**given, "RULES_FOLDER": str(folder), "BACKSTAY_POLL_INTERVAL": "0.2"}
    shutil.rmtree(folder)


def run(environment: dict[str, str], *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [str(RUN), *arguments], env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_one_command_embeds_the_sample_after_a_kill_too_and_a_search_finds_rules_by_meaning(
    own_server: dict[str, str],
) -> None:
    process = subprocess.Popen([str(RUN)], env=own_server, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert any(f"{RULES} rules are stored" in line for line in process.stdout)
    process.kill()
    process.communicate()

    code, said = run(own_server)
    assert code == 0, said
    by_priority = re.findall(r"(urgent|high|normal) +(\w+) +(\d+)", said)
    assert {status for _, status, _ in by_priority} == {"completed"}, said
    assert sum(int(count) for _, _, count in by_priority) == RULES, "every job has ended once"

    code, said = run(own_server, "search", "where should an API token be kept", "--limit", "2")
    assert code == 0, said
    assert "SEC-2" in said and "PER-" not in said


def test_a_url_that_leads_nowhere_is_told_in_one_line(own_server: dict[str, str]) -> None:
    code, said = run({**own_server, "DATABASE_URL": "mysql://127.0.0.1/rules"}, "health")
    assert code == 1
    assert said.startswith("rules: ") and len(said.splitlines()) == 1


class Worker:
    """`backstay worker` on the application, as a process that can be killed."""

    def __init__(self, environment: dict[str, str], **variables: str) -> None:
        command = [str(Path(sys.executable).with_name("backstay")), "--app", "rules.jobs:app", "worker"]
        self.process = subprocess.Popen(command, env={**environment, **variables}, stderr=subprocess.DEVNULL)

    async def ended(self) -> int:
        return await asyncio.to_thread(self.process.wait, 30)


@pytest.fixture
def working(example_environment: dict[str, str], database_url: str, ollama: Ollama) -> dict[str, str]:
    settings = {"DATABASE_URL": database_url, "OLLAMA_URL": ollama.url, "BACKSTAY_POLL_INTERVAL": "0.2"}
    return {**example_environment, **settings, "HOME": os.environ.get("HOME", "/")}


async def watch_vectors(sql: Any) -> None:
    """From now on every vector that is written to a rule leaves a line."""
    await sql.execute("CREATE TABLE written (rule text)")
    await sql.execute(
        "CREATE FUNCTION note_vector() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN INSERT INTO written VALUES (NEW.rule_id); RETURN NULL; END $$"
    )
    await sql.execute(
        "CREATE TRIGGER watched AFTER UPDATE OF embedding ON rules FOR EACH ROW EXECUTE FUNCTION note_vector()"
    )


@pytest.mark.parametrize("moment", ["in the model's call", "apply.uncommitted=kill9@1"])
async def test_a_worker_that_is_killed_in_a_batch_loses_nothing_and_each_rule_gets_its_vector_once(
    app: Backstay, sql: Any, working: dict[str, str], ollama: Ollama, moment: str
) -> None:
    await watch_vectors(sql)
    async with sql.transaction():
        for number in range(6):
            await insert(sql, f"R{number}")
    in_call = not moment.startswith("apply")
    if in_call:
        ollama.go_on.clear()
    first = Worker(working, BACKSTAY_FAILPOINTS="" if in_call else moment)
    if in_call:
        await asyncio.to_thread(ollama.arrived.wait, 30)
        first.process.kill()
    assert await first.ended() == -signal.SIGKILL
    assert len(ollama.calls[0]) == 6, "it died with the whole batch in its hands"
    ollama.go_on.set()

    second = Worker(working)
    jobs = await app.find()
    for job in jobs:
        await app.result(job.job_id, timeout=30)
    second.process.terminate()
    assert await second.ended() == 0

    assert await embedded(sql) == 6
    written = Counter(row["rule"] for row in await sql.fetch("SELECT rule FROM written"))
    assert written == {f"R{number}": 1 for number in range(6)}
    for job in jobs:
        ends = Counter(str(entry.event) for entry in await app.history(job.job_id))
        assert ends["complete"] == 1
