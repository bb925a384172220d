"""The two DynamoDB tables and their indexes, where everything is stored, and how values are encoded. Pure.

In DynamoDB's JSON, texts are S, numbers N, bytes B, sets of texts SS, lists L, mappings M. None is absence: it is never
written.

Jobs are in `<prefix>_jobs` (HASH job_id), with what retention leaves of them in place; everything else is in
`<prefix>_records` (HASH pk, RANGE sk), always read consistently. The four indexes that other programs query have plain
attributes of a job as their keys; how those are written is in attributes.py. Attributes that only the other indexes
read are derived from a job by `derived`, never set by hand: their names begin with g.

* Instants in keys are 16 digits, ids 32 hex digits, priorities `100 - priority` as 3 digits: text order is the order
  in which they are wanted.
* Names in composed keys are escaped and, where long, cut and hashed (`part`), because a RANGE key ends at 1,024 bytes.
  Items that must give a name back carry it as an attribute.
* `#n` marks shard n of an index partition; the first has no mark, so that one shard means plain values.

Indexes of the jobs, and what is in them; examples are of the job 0198d0c2-6c1e-7001-8a3b-1f2e3d4c5b6a, PCA in default:

    StatusCreatedIndex  status               created_at                every job
                        pending              2025-11-16T13:33:20.000000Z
    ConversationIndex   subject              created_at                jobs with a subject, under the name of the URL
    JobTypeIndex        job_type             priority (N)              every job: PCA / 50
    WorkerStatusIndex   worker_id            status                    claimed at least once: host-7 / processing
    ReadyIndex          gr ready             gq queue|type|prio|due|id pending, claimable:   default|PCA|050|1763…
                        gr f|queue|type      gq prio|key|due|id        … with a fairness key: 050|tenant-7|1763…
                        gr alone             gq prio|due|id            … that must run alone, of all queues and types
    TimeIndex           gd due, lease        ge at|id                  scheduled, retrying, timed waits; processing
                        gd expire            ge at|id                  pending or waiting, with a time to expire; and
                                                                       scheduled, if that is before it is due
    RootIndex           root_job_id          created_at                members of trees but the root
    ContentIndex        content_hash         gh type|done|completed|id, type|open|created|id, type|else|created|id
    KeyIndex            concurrency_key      gk run|created|id, in|lane|prio|due|id (lane: queue|type|version),
                                             out|lane|… (parked by it), off|created|id, end|created|id
                        gpu                  in|default|PCA|1|050|1763300000000000|0198d0c26c1e70018a3b1f2e3d4c5b6a
    RateIndex           gb key|count|micros  gm in|lane|prio|due|id, out|lane|…: api|5|1000000 / in|default|PCA|1|050|…
    ArchiveIndex        ga files, clean      gz archived|id            archived jobs

One item is not a job: `backstay` has `records`, the name of the table that belongs to this one.

Records, by pk and sk:

    meta / schema                            number, names, shards, place, created_at
    meta / turn|scan                         which process does a costly sweep: taken_at, by, at
    board / place                            place, shards: as the schema has them, for processes that run
    board / signals                          ready, due, planned, stopped, ended, output: counters that only grow
    board / queue|mail                       paused_at, paused_by, pause_reason, paused_until, max_pending, nonce
    board / limit|type|embed                 what was set at run time for a type or a key: paused_at, …, nonce
    board / fair|mail|send                   the lane has, or had, jobs with a fairness key
    board / move                             state, frozen_at: the queue is in transfer, or was transferred
    body|0198d0c2-… / k3J9x0a2Qe1.p.1.0      text: a payload (p), result (r) or list of artifacts (a), in parts;
                                             unnamed_at: when the sweep first found that no job names it
    dedup|summary:7 / guard                  key, job_id, until, nonce
    edge|<parent> / <child>                  met, joined
    needs|<child> / 0000                     parents, where they are more than the job itself lists
    kid|<parent> / <child>                   a child of a tree: what `children` reads
    staged|<job_id>|2 / 0003.01              children that wait for the settlement of attempt 2: of part 3 a piece
    step|<job_id> / step|charge              kind, name, answer, attempt, recorded_at
    step|<job_id> / sent|<event_id>          an event that was sent to the job; at: the version of the job then
    step|<job_id> / |forgotten               attempt, version: steps up to this attempt and events up to this version
                                             are forgotten; written with a manual retry
    mailbox|order:7 / mailbox                key, content, expires_at, nonce: of a correlation key, see core/waits.py
    output|<job_id> / 000000002|000000000|000000057    entries of ctx.stream up to the 57th, of attempt 2 and take 0:
                                             attempt, take, first, last, size, written_at, text
    gate|c|gpu / gate                        holders: the ids of running jobs
    gate|r|api|5|1000000 / gate              full_at, nonce, parked_at, wanted
    gate|t|embed / gate                      holders, likewise of a type that is limited at run time; counted_at
    gate|q|mail / gate                       room, counted_at, limit, nonce; while max_pending is set
    gate|q|mail / given|1763300000000000|5f2a9c010b3d|0000    ids of admitted jobs; journal, at
    waiting / c|gpu|2                        a key with parked jobs: limit, set_at, nonce
    waiting / r|1763300000000000|api|5|1000000    a rate with parked jobs, by the time of its next check: due_at, nonce
    turns|mail|send / lane, key||tenant-7    position, after, nonce; position, turn_at
    schedules / nightly                      every field of Schedule
    declarations / reports:app               version, details
    workers / host-7                         worker_id, heartbeat_at, details
    types / PCA                              details
    counthours / 00489805|2                  the hours and slots that have counters
    count|489805|2 / 1763300040000000|5f2a9c010|PCA|default|50|completed    n, ran, waited, b17 (of attempts in bucket
                                             17, see core/states.py: how many); a writer's own
    sums / PCA|default|completed             the same over all hours before `until`
    meta / summed                            hour: the counters of all before it are in the sums
    keys / 3kTQm0Zr9aXw                      every field of ApiKey
    trails / 00680                           the periods of thirty days that have entries of the audit trail
    trail|00680 / 019a8e0c-…                 every field of AuditEntry
    journal|k3J9x0a2Qe1 / 0000               part of a batch that is larger than one commit
    outbox|3 / ended|<job_id>                kind, name, nonce, at: what maintenance continues (see MarkKind)
    results / comment_embeddings             definition of a result table, whose rows are a table of their own
    latest|19305|PCA / latest                job_id: the last of its subject and type that completed with rows
    file|<job_id> / 1|report.txt             made, size; the keys of its parts add |made|start
"""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from collections.abc import Mapping
from enum import Enum
from typing import Any

import msgspec

from backstay.clock import Instant
from backstay.core.records import LimitOf
from backstay.core.states import ACTIVE, Status
from backstay.core.suspicion import RUNS_ALONE
from backstay.errors import StoreError

SCHEMA = 1
SCHEMA_NAMES = ("0001_tables",)


class Table(Enum):
    JOBS = "jobs"
    RECORDS = "records"

    @property
    def key_names(self) -> tuple[str, ...]:
        return ("job_id",) if self is Table.JOBS else ("pk", "sk")


Key = tuple[str, ...]  # (job_id,) or (pk, sk)
OWNER: Key = ("backstay",)  # not a job: the item of the jobs' table that names the records' table


class Index(msgspec.Struct, frozen=True):
    """An index of the jobs: its keys and what it shows of each, as fields of a job."""

    name: str
    hash: str
    range: str
    includes: tuple[str, ...] = ()
    promised: bool = False  # other programs query it: with projection=all, it shows everything


STATUS = Index(
    "StatusCreatedIndex",
    "status",
    "created_at",
    (
        "queue",
        "job_type",
        "priority",
        "scheduled_for",
        "started_at",
        "completed_at",
        "root_job_id",
        "created_by",
        "error_type",
        "subject",
        "worker_id",
        "version",
    ),
    promised=True,
)
# Beyond its keys, an index shows what changes only together with them: an entry costs a unit each time that it changes.
SUBJECT = Index("ConversationIndex", "subject", "created_at", ("job_type", "priority", "created_by"), promised=True)
TYPE = Index("JobTypeIndex", "job_type", "priority", ("scheduled_for", "created_at", "subject"), promised=True)
WORKER = Index(
    "WorkerStatusIndex",
    "worker_id",
    "status",
    ("job_type", "priority", "subject", "created_at", "started_at", "completed_at", "version"),
    promised=True,
)
READY = Index(
    "ReadyIndex",
    "gr",
    "gq",
    (
        "queue",
        "job_type",
        "suspicion",
        "payload_version",
        "concurrency_key",
        "concurrency_limit",
        "rate_key",
        "rate_count",
        "rate_micros",
        "fairness_key",
        "fairness_weight",
    ),
)
TIME = Index("TimeIndex", "gd", "ge")
ROOT = Index("RootIndex", "root_job_id", "created_at", ("parent_job_id",))
CONTENT = Index("ContentIndex", "content_hash", "gh")
KEY = Index("KeyIndex", "concurrency_key", "gk", ("concurrency_limit",))
RATE = Index("RateIndex", "gb", "gm")
ARCHIVE = Index("ArchiveIndex", "ga", "gz")
INDEXES = {
    index.name: index for index in (STATUS, SUBJECT, TYPE, WORKER, READY, TIME, ROOT, CONTENT, KEY, RATE, ARCHIVE)
}


Item = dict[str, Any]  # native values; DynamoDB's encoding stays in this file
Wired = dict[str, Any]


def encode(item: Mapping[str, Any]) -> Wired:
    return {name: encode_value(value) for name, value in item.items() if value is not None}


def decode(wired: Mapping[str, Any]) -> Item:
    try:
        return {name: decode_value(value) for name, value in wired.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise StoreError(f"an item cannot be read: it is not valid DynamoDB JSON: {error}") from None


def encode_value(value: Any) -> Wired:
    if isinstance(value, str):
        return {"S": str(value)}
    if isinstance(value, bool):
        return {"BOOL": value}
    if isinstance(value, int | float):
        return {"N": repr(value)}
    if isinstance(value, bytes):
        return {"B": base64.b64encode(value).decode()}
    if isinstance(value, set | frozenset):
        return {"SS": sorted(value)}
    if isinstance(value, list | tuple):
        return {"L": [encode_value(each) for each in value]}
    if isinstance(value, Mapping):
        return {"M": {name: encode_value(each) for name, each in value.items()}}
    if value is None:
        return {"NULL": True}
    raise TypeError(f"{type(value).__name__} cannot be stored in an item")


def decode_value(wired: Mapping[str, Any]) -> Any:
    [(kind, value)] = wired.items()
    match kind:
        case "S" | "BOOL":
            return value
        case "N":
            return _number(value)
        case "B":
            return base64.b64decode(value)
        case "SS":
            return set(value)
        case "L":
            return [decode_value(each) for each in value]
        case "M":
            return decode(value)
        case "NULL":
            return None
        case _:
            raise TypeError(f"a value of kind {kind!r} is not one of ours")


def _number(text: str) -> int | float:
    """Parse a number. DynamoDB returns 1E+2 for some whole numbers; instants and counts must stay exact."""
    try:
        return int(text)
    except ValueError:
        number = float(text)
        return int(number) if number.is_integer() and "." not in text else number


def size(item: Mapping[str, Any]) -> int:
    """Return the size in bytes as DynamoDB counts it: names and values."""
    return sum(len(name.encode()) + size_of(value) for name, value in item.items() if value is not None)


def size_of(value: Any) -> int:
    if isinstance(value, str):
        return len(value.encode())
    if isinstance(value, bool):
        return 1
    if isinstance(value, int | float):
        return (len(repr(value).lstrip("-").replace(".", "")) + 1) // 2 + 2
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, set | frozenset):
        return sum(size_of(each) for each in value)
    if isinstance(value, list | tuple):
        return 3 + sum(1 + size_of(each) for each in value)
    if isinstance(value, Mapping):
        return 3 + sum(1 + len(name.encode()) + size_of(each) for name, each in value.items())
    return 1


# Every change sets or removes each of them.
DERIVED = ("gr", "gq", "gd", "ge", "gh", "gk", "gb", "gm", "ga", "gz")
DERIVED_BYTES_MAX = 4_000
NO_TIME: Instant = 9_999_999_999_999_999
HIGH = "\U0010ffff"  # sorts after every text: `part` escapes it
SLOTS = 4  # partitions over which writers of counters and marks are spread
_PART_BYTES_MAX = 200
_odd = re.compile("[%|#~\x00\x01\U0010ffff]")  # separators, the mark of a cut name, and the end of query bounds
_ended = frozenset(status.value for status in Status) - frozenset(status.value for status in ACTIVE)


# Parts of keys


def at(instant: Instant) -> str:
    return f"{min(max(instant, 0), NO_TIME):016d}"


def short(job_id: str) -> str:
    return job_id.replace("-", "")


def part(text: str) -> str:
    """Encode a name inside a key: unique except for the hash, without separators, and sorted before HIGH."""
    escaped = text if _odd.search(text) is None else _odd.sub(_escape, text)
    raw = escaped.encode()
    if len(raw) <= _PART_BYTES_MAX:
        return escaped
    head = raw[:80].decode(errors="ignore")
    return f"{head}~{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def _escape(found: re.Match[str]) -> str:
    return f"%{ord(found[0]):02X}"


def joined(*parts: str) -> str:
    return "|".join(part(each) for each in parts)


def shard(text: str, shards: int) -> int:
    return zlib.crc32(text.encode()) % shards


def suffix(number: int) -> str:
    return f"#{number}" if number else ""


def all_shards(plain: str, shards: int) -> list[str]:
    """Return the partition of an index in all its shards."""
    return [f"{plain}{suffix(number)}" for number in range(shards)]


def slot(text: str) -> int:
    return zlib.crc32(text.encode()) % SLOTS


# Keys of indexes


def created(created_at: Instant, job_id: str) -> str:
    return f"{at(created_at)}|{short(job_id)}"


def rank(priority: int) -> str:
    return f"{100 - priority:03d}"


def place(priority: int, due_at: Instant, job_id: str) -> str:
    """Return the position of a job in claim order."""
    return f"{rank(priority)}|{at(due_at)}|{short(job_id)}"


def fair_place(priority: int, fairness_key: str, due_at: Instant, job_id: str) -> str:
    return f"{rank(priority)}|{part(fairness_key)}|{at(due_at)}|{short(job_id)}"


ALONE = "alone"  # the partition of the ready index with the jobs that run alone: they are few, and it is not sharded
READY_JOBS = "ready"


def ready_hash(number: int) -> str:
    """Return the partition of a shard of the ready index: all lanes, so that one query finds those that have jobs."""
    return f"{READY_JOBS}{suffix(number)}"


def in_lane(name: str) -> str:
    """Return a queue or a type as `gq` has it; the two of them begin the places of a lane, in this order."""
    return f"{part(name)}|"


def lane_and_place(ready_place: str) -> tuple[tuple[str, str], str]:
    """Return queue and type, as `in_lane`, and the place among the jobs of all lanes."""
    queue, job_type, place = ready_place.split("|", 2)
    return (f"{queue}|", f"{job_type}|"), place


def fair_ready(queue: str, job_type: str) -> str:
    return f"f|{joined(queue, job_type)}"


def fair_hash(queue: str, job_type: str, number: int) -> str:
    """Return the partition of a lane's jobs with a fairness key, in one of its shards."""
    return f"{fair_ready(queue, job_type)}{suffix(number)}"


def lane(queue: str, job_type: str, payload_version: int) -> str:
    return f"{joined(queue, job_type)}|{payload_version}"


def rate_name(rate_key: str, count: int, micros: int) -> str:
    return f"{part(rate_key)}|{count}|{micros}"


def lease_place(lease_expires_at: Instant, job_id: str) -> str:
    """Return `ge` of a running job, which an extension sets together with `lease_expires_at`."""
    return f"{at(lease_expires_at)}|{short(job_id)}"


def archive(kind: str, job_id: str, shards: int) -> str:
    """Return `ga` of an archived job: files, or clean."""
    return f"{kind}{suffix(shard(job_id, shards))}"


def derived(item: Item, shards: int) -> Item:
    """Return every index attribute of this job; those of DERIVED that are missing here are to be removed."""
    job_id = item["job_id"]
    if "archived_at" in item:
        return {
            "ga": archive("files" if item.get("files") else "clean", job_id, shards),
            "gz": created(item["archived_at"], job_id),
        }
    status = item["status"]
    arrived = created(item["created_at"], job_id)
    stands = place(item["priority"], item["scheduled_for"], job_id)
    mark = suffix(shard(job_id, shards))
    found: Item = {}
    match status:
        case "pending":
            if "parked" not in item:
                found.update(_ready(item, stands, shards))
        case "processing":
            found.update(gd=f"lease{mark}", ge=lease_place(item["lease_expires_at"], job_id))
        case "waiting" if "wakes_at" in item:
            found.update(gd=f"due{mark}", ge=f"{at(item['wakes_at'])}|{short(job_id)}")
        case "scheduled" | "retrying":
            found.update(gd=f"due{mark}", ge=f"{at(item['scheduled_for'])}|{short(job_id)}")
    expires_at = item.get("expires_at")
    if expires_at is not None and not (status == "scheduled" and item["scheduled_for"] < expires_at):
        found.update(gd=f"expire{mark}", ge=f"{at(expires_at)}|{short(job_id)}")
    if item.get("content_hash"):
        found["gh"] = f"{part(item['job_type'])}|{_content(item, status, arrived)}"
    if item.get("concurrency_key"):
        found["gk"] = _by_key(item, status, arrived, stands)
    if item.get("rate_count") and status == "pending" and item.get("parked") != "c":
        found["gb"] = rate_name(item.get("rate_key", ""), item["rate_count"], item["rate_micros"])
        found["gm"] = f"{'out' if item.get('parked') == 'r' else 'in'}|{lane_of(item)}|{stands}"
    return found


def lane_of(item: Item) -> str:
    return lane(item["queue"], item["job_type"], item.get("payload_version", 1))


def _ready(item: Item, stands: str, shards: int) -> Item:
    if item.get("suspicion", 0) >= RUNS_ALONE:
        return {"gr": ALONE, "gq": stands}
    key = item.get("fairness_key")
    if key is None:
        lane = in_lane(item["queue"]) + in_lane(item["job_type"])
        return {"gr": ready_hash(shard(item["job_id"], shards)), "gq": lane + stands}
    mark = suffix(shard(key, shards))  # all jobs of a key in one shard
    return {
        "gr": f"{fair_ready(item['queue'], item['job_type'])}{mark}",
        "gq": fair_place(item["priority"], key, item["scheduled_for"], item["job_id"]),
    }


def _content(item: Item, status: str, arrived: str) -> str:
    if status == Status.COMPLETED:
        return f"done|{created(item['completed_at'], item['job_id'])}"
    return f"{'else' if status in _ended else 'open'}|{arrived}"


def _by_key(item: Item, status: str, arrived: str, stands: str) -> str:
    if status == Status.PROCESSING:
        return f"run|{arrived}"
    if status in _ended:
        return f"end|{arrived}"
    match item.get("parked"):
        case None if status == Status.PENDING:
            return f"in|{lane_of(item)}|{stands}"
        case "c" if status == Status.PENDING:
            return f"out|{lane_of(item)}|{stands}"
        case _:
            return f"off|{arrived}"


# Keys of records

SCHEMA_KEY: Key = ("meta", "schema")
BOARD = "board"
SIGNALS_KEY: Key = (BOARD, "signals")
MOVE_KEY: Key = (BOARD, "move")
PLACE_KEY: Key = (BOARD, "place")
SCHEDULES = "schedules"
DECLARATIONS = "declarations"
WORKERS = "workers"
FORMER_WORKERS = "formerworkers"
TYPES = "types"
WAITING = "waiting"
RESULTS = "results"
COUNT_HOURS = "counthours"
SUMS = "sums"
SUMMED_KEY: Key = ("meta", "summed")
API_KEYS = "keys"
TRAILS = "trails"


def turn(name: str) -> Key:
    """Return the key of the turn of a costly sweep: sweep, keys, scan."""
    return ("meta", f"turn|{name}")


def queue_row(name: str) -> Key:
    return (BOARD, f"queue|{part(name)}")


def limit_row(of: LimitOf, name: str) -> Key:
    return (BOARD, f"limit|{of.value}|{part(name)}")


def fair_lane(queue: str, job_type: str) -> Key:
    return (BOARD, f"fair|{joined(queue, job_type)}")


def body(job_id: str, name: str, number: int) -> Key:
    return (f"body|{job_id}", f"{name}.{number}")


def guard(dedup_key: str) -> Key:
    return (f"dedup|{part(dedup_key)}", "guard")


def edges(parent: str) -> str:
    return f"edge|{parent}"


def edge(parent: str, child: str) -> Key:
    return (edges(parent), child)


def needs(child: str, number: int = 0) -> Key:
    return (f"needs|{child}", f"{number:04d}")


def kids(parent: str) -> str:
    return f"kid|{parent}"


def kid(parent: str, child: str) -> Key:
    return (kids(parent), child)


def staged(job_id: str, attempt: int) -> str:
    return f"staged|{job_id}|{attempt}"


def staged_piece(job_id: str, attempt: int, part_number: int, piece: int) -> Key:
    return (staged(job_id, attempt), f"{part_number:04d}.{piece:02d}")


def steps(job_id: str) -> str:
    return f"step|{job_id}"


def step(job_id: str, kind: str, name: str) -> Key:
    return (steps(job_id), steps_of(kind) + part(name))


def steps_of(kind: str) -> str:
    """Return what the keys of all steps of a kind begin with."""
    return f"{kind}|"


def forgotten_steps(job_id: str) -> Key:
    return (steps(job_id), "|forgotten")


def output(job_id: str) -> str:
    return f"output|{job_id}"


def output_take(attempt: int, take: int) -> str:
    """Return the beginning of the keys of the parts of a take."""
    return f"{attempt:09d}|{take:09d}|"


def output_part(job_id: str, attempt: int, take: int, last: int) -> Key:
    return (output(job_id), f"{output_take(attempt, take)}{last:09d}")


def mailbox(event_key: str) -> Key:
    return (f"mailbox|{part(event_key)}", "mailbox")


def key_gate(concurrency_key: str) -> Key:
    return (f"gate|c|{part(concurrency_key)}", "gate")


def rate_gate(rate_key: str, count: int, micros: int) -> Key:
    return (f"gate|r|{rate_name(rate_key, count, micros)}", "gate")


def type_gate(job_type: str) -> Key:
    return (f"gate|t|{part(job_type)}", "gate")


def queue_gate(queue: str) -> Key:
    return (f"gate|q|{part(queue)}", "gate")


def given(queue: str, instant: Instant, name: str, number: int) -> Key:
    """Return the key of a record of jobs that were admitted to a limited queue."""
    return (queue_gate(queue)[0], f"given|{at(instant)}|{name}|{number:04d}")


def waiting_key(concurrency_key: str, limit: int) -> Key:
    return (WAITING, f"c|{part(concurrency_key)}|{limit}")


def turns(queue: str, job_type: str) -> str:
    return f"turns|{joined(queue, job_type)}"


def turns_lane(queue: str, job_type: str) -> Key:
    return (turns(queue, job_type), "lane")


def turn_of(queue: str, job_type: str, fairness_key: str | None) -> Key:
    return (turns(queue, job_type), f"key|{'' if fairness_key is None else '|' + part(fairness_key)}")


def schedule(name: str) -> Key:
    return (SCHEDULES, part(name))


def declaration(origin: str) -> Key:
    return (DECLARATIONS, part(origin))


def worker(worker_id: str) -> Key:
    return (WORKERS, part(worker_id))


def former_worker(worker_id: str) -> Key:
    return (FORMER_WORKERS, part(worker_id))


def job_type(name: str) -> Key:
    return (TYPES, part(name))


def counted(hour: int, number: int) -> str:
    """Return the partition of the counters of one hour (since the epoch) and slot."""
    return f"count|{hour}|{number}"


def summed(job_type: str, queue: str, outcome: str) -> Key:
    return (SUMS, f"{joined(job_type, queue)}|{outcome}")


def api_key(key_id: str) -> Key:
    return (API_KEYS, part(key_id))


def trail(period: int) -> str:
    """Return the partition of audit entries of one period of thirty days."""
    return f"trail|{period:05d}"


def trail_listed(period: int) -> Key:
    return (TRAILS, f"{period:05d}")


def journal(journal_id: str, number: int) -> Key:
    return (f"journal|{journal_id}", f"{number:04d}")


def outbox(number: int) -> str:
    return f"outbox|{number}"


def mark(kind: str, name: str) -> Key:
    """Return the key of an outbox mark: see MarkKind."""
    return (outbox(slot(name)), f"{kind}|{name}")


def result_table(name: str) -> Key:
    return (RESULTS, name.lower())


def latest(subject: str, job_type: str) -> Key:
    return (f"latest|{joined(subject, job_type)}", "latest")


def files(job_id: str) -> str:
    return f"file|{job_id}"


def file(job_id: str, attempt: int, name: str) -> Key:
    """Return the key of the head of a file; those of its parts begin with it."""
    return (files(job_id), f"{attempt}|{part(name)}")
