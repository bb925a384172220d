"""Every limit of the system, with its reason. Everything that is stored or waited for is bounded here."""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

# What a caller may submit.
PAYLOAD_BYTES_MAX = 256 * KIB  # a DynamoDB item holds 400 KB; the rest of the record needs its share
RESULT_INLINE_BYTES_MAX = 64 * KIB  # still fits into one DynamoDB item with a full payload and five errors
RESULT_BYTES_MAX = 64 * MIB  # stored as an artifact; beyond this a handler should store a file and return its name
RESULT_QUICK_PARTS_MAX = 1_000  # values in a result that a worker encodes on its event loop: a tenth of a millisecond …
RESULT_QUICK_BYTES_MAX = 256 * KIB  # … and how long its texts may be; more is encoded in a thread
RESULT_MEMORY_BYTES_MAX = (
    512 * MIB
)  # that a process may grow by while a serializer of a result runs, before it is stopped
DYNAMODB_FILE_BYTES_MAX = 16 * MIB  # results, logs, artifacts in its tables: each KiB is a write unit; use S3 for more
ARTIFACT_BYTES_MAX = 80_000 * MIB  # in a folder or a bucket: S3 accepts 10,000 parts, and one of 8 MiB is in memory
ARTIFACT_READ_BYTES_MAX = 64 * MIB  # of a file that a handler reads as a whole: a child process gets it in one message
JSON_DEPTH_MAX = 64  # deeper documents overflow the parser's stack on some engines
JSON_INT_MAX = 2**63 - 1  # SQLite and PostgreSQL integers; only DynamoDB keeps more, 38 digits
JSON_INT_MIN = -(2**63)
NAME_LENGTH_MAX = 128  # job types, queues, worker ids: short enough for any index key
DEDUP_FIELDS_MAX = 6  # payload fields in a dedup key: the hash of each takes 65 of the characters of a key
KEY_LENGTH_MAX = 512  # dedup keys, subjects, content hashes: DynamoDB sort keys hold at most 1,024 bytes
TAGS_MAX = 32
TAG_LENGTH_MAX = 128
DEPENDENCIES_MAX = 10_000  # each dependency is a row, written in one transaction with the job
SUBMIT_BATCH_MAX = 50_000  # one atomic submit_many; only the caller knows how a longer list may be split
CONTENT_LOCKS_MAX = 1_000  # contents that one transaction on PostgreSQL locks: the server has room for a few thousand
REASON_LENGTH_MAX = 2_000  # a sentence, not a document
MAX_ATTEMPTS_MAX = 1_000
TIMEOUT_SECONDS_MAX = 30 * 24 * 3600
SPAN_SECONDS_MAX = 100 * 366 * 24 * 3600  # dedup_for and reuse; beyond a century, use "forever" or True
DELAY_SECONDS_MAX = 10 * 366 * 24 * 3600  # a date that is off by a century is a mistake, not a plan

RUN_LIMITS_MAX = 1_000  # types and keys limited at run time: on DynamoDB every claim reads them all
RUN_CONCURRENCY_MAX = 100_000  # no fleet runs as many jobs of a type at once
RATE_COST_MAX = 999_999_999  # as many as a rate may allow
FAIRNESS_WEIGHT_MAX = 1_000  # turns are counted in integer steps of a million; a larger weight makes no difference
SCHEDULES_AHEAD = 1_000  # schedules that a worker keeps in mind, those that tick next: it reads them every few seconds
AHEAD_MAX = 1_000  # jobs ahead of one that are counted, so that to explain it stays cheap in a line of any length
FORETELL_MINUTES = 15  # whose run times tell how long jobs take now; without any, those of all time do
FORETELL_LANES_MAX = 20  # other queues and types whose jobs come first, each counted by itself
FORETELL_WORKERS_MAX = 1_000  # workers whose slots are added up: more are taken as if they were not there
JITTER_SECONDS_MAX = 86_400.0  # more than a day would move a job to another day than its tick's
BACKFILL_TICKS_MAX = 1_000  # jobs that one backfill submits: a longer span is submitted in parts
DECLARED_MAX = 1_000  # schedules in the code of one app, whose names are one record: on DynamoDB it holds 400 KB
SUPERSEDED_MAX = 50  # earlier code of an app that is recognised as earlier, should one of its workers start again
SCHEDULES_MAX = 10_000  # on DynamoDB, where every worker reads them all every half minute; SQL engines have no limit
MAX_PENDING_MAX = 100_000  # a submit to a limited queue counts its pending jobs, up to the limit
RETENTION_DAYS_MAX = 36_525  # a hundred years; beyond that, use None
LIST_LIMIT = 100  # workers, schedules or queues on a page, unless the caller asks for more …
LIST_LIMIT_MAX = 1_000  # … up to this: one answer is in memory as rows and as text

# API keys and the audit trail.
KEYS_MAX = 1_000  # a server holds them all in memory, and reads them again every few seconds
SESSIONS_MAX = 1_000  # dashboard sessions, in addition to the keys; the oldest are dropped first
SESSION_SECONDS = 12 * 3600  # a working day; then the user logs in again
KEY_DAYS_MAX = 3_660  # ten years; for longer, create a key that does not expire
KEY_QUEUES_MAX = 50  # patterns per key: all are checked for every job that is requested
AUDIT_DAYS = 365
AUDIT_TEXT_BYTES_MAX = 8 * KIB  # for each of the states before and after: a page of entries is held in memory
AUDIT_PAGE_MAX = 1_000

# Workers over HTTP, and streams.
LONG_POLL_SECONDS_MAX = 30.0  # proxies close connections that are silent for a minute
LONG_POLLS_MAX = 2_000  # requests that wait for jobs at one server; each holds a connection …
KEY_LONG_POLLS_MAX = 1_000  # … and per key: a fleet may share one key without locking others out
REMOTE_CLAIMS_MAX = 100  # jobs per claim; all of them, with their payloads, are in one response
HEARTBEAT_JOBS_MAX = 1_000  # claims that one heartbeat extends
SCHEMA_BYTES_MAX = 64 * KIB  # of a payload's schema that a worker announces; every server reads them all
SCHEMA_PARTS_MAX = 10_000  # schemas in it that look at one value, each $ref replaced: a few lines can double them
SCHEMA_DEPTH_MAX = 100  # schemas within schemas, counted the same way: each takes a few stack frames to check
SCHEMA_SECONDS_MAX = 3.0  # processor time to check one payload; 256 KiB of nulls that may be numbers take one second
RELATIVES_READ_MAX = 2_000  # other jobs looked up for a page, to see which of them the key may know; the rest is hidden
SENSITIVE_FIELDS_MAX = 500  # marks of one job type, ever announced; more of them become wider ones
STREAMS_MAX = 1_000  # event streams at one server; one read of the store per second feeds all of them …
KEY_STREAMS_MAX = 250  # … and per key: a client that opens streams and never closes them leaves room for others
LIVE_PAGES_MAX = 200  # dashboard pages that are notified of changes; others poll …
KEY_LIVE_PAGES_MAX = 50  # … and per key: more than a team has open at once

# One request over HTTP.
HTTP_BODY_BYTES_MAX = 1 * MIB  # read completely before routing; a batch of 100 jobs has 10 KiB for each
HTTP_READ_SECONDS = 10.0  # for head and body to arrive: a slower sender is not a legitimate client
HTTP_ANSWER_SECONDS = 45.0  # until a response begins; a claim may wait 30 s for jobs
HTTP_STOP_SECONDS = 10.0  # that a stopping server gives to requests under way
HTTP_RATE = 1_000.0  # requests per second and key, bursts of twice that: beyond it one client takes all capacity
HTTP_FAILURES_MAX = 20  # wrong keys that an address may present at once …
HTTP_FAILURES_PER_SECOND = 0.5  # … and afterwards
HTTP_CLIENTS_MAX = 10_000  # addresses whose failures are remembered
SIFTED_ROWS_MAX = 2_000  # jobs examined for one page of a key that sees few of them: about as long as a full page takes
READY_SECONDS = 2.0  # for the store to respond; a slower one is not ready

# What is stored with a job.
ERRORS_KEPT_MAX = 5  # five 4 KB traces leave room for the payload in a 400 KB item
ERROR_TEXT_MAX = 4_000
LOG_ENTRIES_MAX = 50  # the full log is a file; the record holds its end
LOG_MESSAGE_MAX = 1_000
LOG_FILE_BYTES_MAX = 64 * MIB  # a handler that logs in a loop must not fill the disk
LOG_KEPT_BYTES_MAX = 16 * MIB  # log lines that a worker buffers while the store is unavailable: memory is limited
METRICS_MAX = 64
HISTORY_HEAD = 100  # the first events show how it began …
HISTORY_TAIL = 100  # … the last how it ended; those in between are counted
HISTORY_SLACK = 64  # stored beyond head + tail before a trim, so that trims are rare
LISTED_EDGES_MAX = 100  # dependencies and dependents shown on a record
OUTPUT_ENTRIES_MAX = 100_000  # of ctx.stream, per attempt: the tokens of a long book
OUTPUT_BYTES_MAX = 8 * MIB  # of them together; a file is the place for more
OUTPUT_ENTRY_BYTES_MAX = 64 * KIB  # of one: readers receive it as one event
OUTPUT_PART_BYTES_MAX = 128 * KIB  # entries in one write; a DynamoDB item holds 400 KB
OUTPUT_REQUEST_ENTRIES_MAX = 1_000  # that a remote worker sends in one request
OUTPUT_PARTS_READ_MAX = 50  # in one read: a few megabytes at most
OUTPUT_INTERVAL_SECONDS = 0.1  # between two writes of a worker, each with what all of its jobs have appended meanwhile
STEPS_MAX = 1_000  # recorded steps, sleeps and events of a job that are listed
EVENT_BYTES_MAX = 64 * KIB  # payload of an event: a hundred of them are read at once
EVENT_SCHEMA_BYTES_MAX = (
    8 * KIB
)  # of the type that a wait declares: it is stored with the wait, to check events as they are sent
JOB_EVENTS_MAX = 1_000  # events ever sent to one job: a wait reads them all
EVENTS_KEPT_MAX = 100  # events that a correlation key keeps while no wait listens …
EVENTS_KEPT_BYTES_MAX = 200 * KIB  # … and their payloads together: they are one item on DynamoDB, which holds 400 KB
EVENTS_KEPT_DAYS = 7.0  # that they are kept
EVENT_IDS_KEPT_MAX = 200  # ids of the last events of a key, by which a repeat is known
LISTENERS_MAX = 300  # waits that listen to one key; they are in the same item
STAGE_LENGTH_MAX = 200
RESULT_TABLES_MAX = 200  # each is a table of the engine; a DynamoDB account has 2,500
RESULT_ROW_BYTES_MAX = 300 * KIB  # a DynamoDB item holds 400 KB, including names and what Backstay adds
RESULT_KEY_BYTES_MAX = 1_000  # DynamoDB sort keys hold at most 1,024 bytes
VECTOR_DIMENSIONS_MAX = 16_000  # the limit of pgvector

# Batch sizes and intervals of the engine and the worker.
CLAIM_LIMIT = 200  # a tenth less CPU per job than 100; beyond, nothing is gained (measured) and leases are held longer
CLAIM_ROUNDS_MAX = 20  # each round parks jobs that cannot start, or lost a race; more are left to the next claim
IN_SIGHT_MAX = 200  # claimable jobs of a key per queue and type: a claim, and few enough to be counted often
RATES_DUE_MAX = 1_000  # buckets whose parked jobs are checked in one promotion, the longest due first
CLAIM_LANES_MAX = 500  # queues and types with pending jobs that a claim compares; of more, it looks at a random part
CLAIM_LANES_FEW = 16  # pairs of a queue and a type that are looked at one by one: up to here a walk costs more
PREFETCH_MAX = 400  # claimed ahead of free slots, and no more than the worker finishes in 50 ms
PREFETCH_SECONDS = 0.05
AHEAD_SECONDS_MAX = 1.0  # jobs claimed ahead that have not started by then are given back, for other workers to claim
ALONE_SECONDS = 5.0  # a job that runs alone after losses starts next to nothing younger, and this long nothing joins it
ALONE_TURN_SECONDS = 1.0  # jobs that run alone and all others take turns of at least this …
ALONE_OTHERS_FACTOR = 1.5  # … and those of the others are longer: they get more than half of a worker's time
ALONE_LOOK_SECONDS = 1.0  # between a worker's looks for jobs that wait to run alone
ALONE_COUNTED_MAX = 1_000  # such jobs that a look counts: every worker looks once a second
SETTLE_BATCH_MAX = 500  # one transaction; longer ones delay claims behind the writer
UNSETTLED_MAX = 1_000  # ended and not written yet: a worker that has more claims nothing until the store has caught up
RELEASE_BATCH_MAX = 1_000  # dependents released in one transaction; the rest goes through the outbox
SWEEP_BATCH_MAX = 500  # promoted or rescued in one transaction
FIND_LIMIT_MAX = 1_000
CHILDREN_INLINE_MAX = 100  # children in the commit that submits them; more are staged before it, and unpacked after it
CHILDREN_PART_MAX = 500  # children staged, or unpacked, in one transaction; other claims run in between
STAGED_PART_BYTES_MAX = 4 * MIB  # per part: a process sends it in one message, and holds it in memory twice
CHILDREN_LOADED_MAX = 1_000  # loaded into ctx.children before the handler runs; the rest is read page by page
STAGES_MAX = 100  # of a pipeline: its root submits them in one commit
TREE_JOBS_MAX = 1_000  # jobs that app.tree loads; a larger tree is read in pages of children
TREE_EDIT_MAX = 50_000  # jobs that one cancel, retry or rerun of a tree changes, in pages; they are counted in memory
EFFECT_SECONDS_MAX = 5.0  # of ctx.transaction() on SQLite: others wait at most ten seconds to write
ROWS_PART_MAX = 500  # rows of a result table in one transaction, so that the writer is not blocked for long
ROWS_PART_BYTES_MAX = 4 * MIB  # per part: wide rows make it shorter
ROWS_DROPPED_MAX = 5_000  # rows of an archived job deleted in one transaction; deleting costs less than writing
BATCH_WAIT_SECONDS_MAX = 60.0  # a job should run rather than wait longer for a batch that does not fill
BATCH_SIZE_MAX = 1_000  # jobs in one call of a batch handler; each holds a claim, and is extended with the others
BATCH_ITEM_ROWS_BYTES_MAX = 4 * MIB  # rows that one job of a batch keeps in memory until its call has returned
LATEST_LOOKED_MAX = 200  # jobs of a subject examined for the latest one, if the recorded one has been run again
MOVE_PAGE = 500  # records copied in one commit when a queue is transferred to another store …
IMPORT_PAGE = 500  # jobs of another system stored in one commit
MOVE_PAGE_MIN = 10  # … and fewer, down to this, where a store is away before it has taken them
MOVE_PAGE_BYTES_MAX = 4 * MIB  # how large they may be together, about: they are in memory several times over
EXPORT_BYTES_MAX = 1 * GIB  # of all that is in the file of an exported job, unpacked; larger files are left out
EXPORT_ENTRIES_MAX = 20_000  # parts of it: a tree of a thousand jobs, with their files
EXPORT_LOG_BYTES_MAX = 16 * MIB  # of its log: the first lines tell how it began, the record has the last
BULK_MAX = 1_000  # jobs that one bulk change covers: fits into one request on every engine; repeat it to continue
BULK_STEP = 100  # of them in one transaction; claims run in between
PICTURE_JOBS_MAX = 300  # jobs loaded for a diagram of a tree; a larger one is unreadable
SNOOZES_MAX = 100  # a job that only ever snoozes is stuck: from here on a snooze is a failure
GIVE_BACKS_MAX = 100  # the same for a job that every worker gives back
WAITS_MAX = 100  # and for a parent that waits for new children whenever the last ones have ended
RECORD_INTERVAL_SECONDS = 1.0  # durable progress, at most one write per second and job
RESULT_POLL_SECONDS = 0.5  # when waiting for a result without a signal

SCHEDULE_LATE_SECONDS = 60.0  # a tick that is at most this late still counts as on time under missed="skip"
TICKS_PER_FIRING_MAX = 50  # jobs of one schedule in one commit; a DynamoDB transaction holds 100 items
RETIRE_BATCH_MAX = 500  # ended jobs examined in one step of retention; other calls run in between
RETIRE_INTERVAL_SECONDS = 60.0  # between passes of retention while they find jobs …
RETIRE_REST_SECONDS = 600.0  # … and while they do not
FAIR_KEYS_MAX = 1_000  # tenants that take turns in one claim; if there are more, those that have waited longest
FAIR_KEY_SECONDS = 3600  # how long a tenant's turn is remembered; once forgotten, it comes at most one turn early
FORMER_WORKER_SECONDS = 86_400.0  # that the figures of a worker are kept once it has left: they are those of a day
FORMER_WORKERS_MAX = 1_000  # that are listed, the last to leave first
COUNTERS_DAYS = 30  # per-minute counters; plots do not go further back

# What a tool answers an agent: a language model reads all of it, and pays for it.
AGENT_JOBS_MAX = 100  # on a page, and groups of dead letters
AGENT_EXAMPLES = 10  # ids that the answer to a change of many jobs names
AGENT_TEXT_MAX = 4_000  # characters of a text: a traceback with its last frames, or the beginning of a document
AGENT_ITEMS_MAX = 100  # of a list

# Defaults that users change by option or BACKSTAY_….
LEASE_SECONDS = 60.0
POLL_SECONDS = 5.0  # a fallback; signals usually wake a worker much sooner
CONCURRENCY = 10
GRACE_SECONDS = 30.0  # how long a stopping worker lets handlers finish
WATCHED_FILES_MAX = 20_000  # that `backstay worker --reload` looks at, twice a second
LIFESPAN_END_SECONDS = 10.0  # for the end of a lifespan: a service manager kills what stops too slowly
MOVE_OUTAGE_SECONDS = 60.0  # how long a transfer waits for a store that is away, before the command ends
MOVE_GRACE_SECONDS = 60.0  # how long a queue under transfer waits for running jobs, beyond a lease
MAX_ATTEMPTS = 5
TIMEOUT_SECONDS = 3600.0
BATCH_SIZE = 50
BATCH_WAIT_SECONDS = 0.05
PRIORITY = 50
KEEP_COMPLETED_DAYS = 7
KEEP_CANCELLED_DAYS = 7
KEEP_FAILED_DAYS = 30
KEEP_ARCHIVE_DAYS = 365  # about half a kilobyte per job; a "forever" dedup key holds as long as its job's row is here
