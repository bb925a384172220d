"""A program for test_field_order.py: jobs with every field go through an engine whose table of fields is in reverse.

python -m tests.engines.field_order URL OTHER_URL
"""

import asyncio
import sys
from pathlib import Path
from types import ModuleType

NAME = "backstay.core.job_fields"


def reverse() -> None:
    """Import the table in reverse, before anything reads it."""
    file = Path(__file__).parents[2] / "src" / "backstay" / "core" / "job_fields.py"
    table, mark, lists = file.read_text(encoding="utf-8").partition("\n\n\ndef _names(")
    assert mark and NAME not in sys.modules
    module = sys.modules[NAME] = ModuleType(NAME)
    exec(f"{table}\nJOB_FIELDS = JOB_FIELDS[::-1]{mark}{lists}", module.__dict__)  # noqa: S102 - the project's own file


async def run(url: str, other_url: str) -> None:
    from backstay.core.job_fields import JOB_FIELDS, PLAIN_FIELDS
    from backstay.core.states import Status
    from backstay.engines import open_url
    from backstay.testing.conformance import factories as f
    from backstay.testing.conformance.test_transfer import bare_record, carry

    assert JOB_FIELDS[-1].name == "job_id", "the table is in reverse"
    store, elsewhere = open_url(url), open_url(other_url)
    await store.open()
    await elsewhere.open()
    plain = f.new_job(**f.PLAIN_VALUES | {"payload_version": 1})
    special = f.new_job(**f.SPECIAL_VALUES | {"payload_version": 1}, job_type="rich")
    await store.insert([plain], f.NOW)
    await store.insert([special], f.NOW)
    names = set(PLAIN_FIELDS) - {"payload_version"}
    for job in (plain, special):
        assert f.told(await f.record(store, job.job_id), names) == f.told(job, names)
        claim = await f.claim_one(store, job.job_id, slots={job.job_type: 1})
        of_claim = names & set(type(claim.job).__struct_fields__)
        assert f.told(claim.job, of_claim) == f.told(job, of_claim)
        await f.settle(store, claim.fails() if job is special else claim.completes())
    ended = await f.archived(store, Status.COMPLETED, **f.PLAIN_VALUES | {"payload_version": 1, "job_type": "old"})
    await carry(store, elsewhere)
    for job_id in (plain.job_id, special.job_id, ended.job_id):
        assert await bare_record(elsewhere, job_id) == await bare_record(store, job_id)
    await store.close()
    await elsewhere.close()


if __name__ == "__main__":
    reverse()
    asyncio.run(run(*sys.argv[1:]))
