"""Every bound of the system, with its reason. Nothing that is stored or waited for is without one."""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

# What a caller may hand in.
PAYLOAD_BYTES_MAX = 256 * KIB  # a DynamoDB item holds 400 KB; the rest of the record needs its share
RESULT_INLINE_BYTES_MAX = 64 * KIB  # with a full payload and five errors still inside one DynamoDB item
RESULT_BYTES_MAX = 64 * MIB  # an artifact; beyond this a handler should store a file and return its name
DYNAMODB_FILE_BYTES_MAX = 16 * MIB  # results, logs, artifacts in its tables: every KiB is a write unit; S3 takes more
ARTIFACT_BYTES_MAX = 5 * GIB  # in a folder or a bucket; S3 takes no larger object in one piece
JSON_DEPTH_MAX = 64  # deeper documents overflow parsers' stacks on some engines
JSON_INT_MAX = 2**63 - 1  # SQLite and PostgreSQL integers; DynamoDB keeps 38 digits, others do not
JSON_INT_MIN = -(2**63)
NAME_LENGTH_MAX = 128  # job types, queues, worker ids: short enough for any index key
KEY_LENGTH_MAX = 512  # dedup keys, subjects, content hashes: DynamoDB sort keys end at 1,024 bytes
TAGS_MAX = 32
TAG_LENGTH_MAX = 128
DEPENDENCIES_MAX = 10_000  # edges are rows of their own, written in one transaction with the job
SUBMIT_BATCH_MAX = 50_000  # one atomic submit_many; a longer list is split by the caller, who knows what may split
REASON_LENGTH_MAX = 2_000  # a sentence, not a document
MAX_ATTEMPTS_MAX = 1_000
TIMEOUT_SECONDS_MAX = 30 * 24 * 3600
SPAN_SECONDS_MAX = 100 * 366 * 24 * 3600  # dedup_for and reuse; beyond a century "forever" and True say what is meant
DELAY_SECONDS_MAX = 10 * 366 * 24 * 3600  # a date typed wrong by a century is a mistake, not a plan

FAIRNESS_WEIGHT_MAX = 1_000  # turns are counted in whole steps of a million; beyond this a weight says nothing more
SCHEDULES_MAX = 10_000  # workers read them all; more belong into a table of the user's own, one schedule over it
MAX_PENDING_MAX = 100_000  # a submit to a limited queue counts what is pending there, up to the limit
RETENTION_DAYS_MAX = 36_525  # a hundred years; beyond that None says what is meant

# Keys of the HTTP API, and what is kept of changes.
KEYS_MAX = 1_000  # a server holds them all, and reads them anew every few seconds
SESSIONS_MAX = 1_000  # of the dashboard, beside them; the oldest go first
SESSION_SECONDS = 12 * 3600  # a working day; then one logs in again
KEY_DAYS_MAX = 3_660  # ten years; a key for longer has no end
KEY_QUEUES_MAX = 50  # patterns of one key: all are looked at for every job that is asked for
AUDIT_DAYS = 365
AUDIT_TEXT_BYTES_MAX = 8 * KIB  # of what was, and of what is since: a page of entries is held in memory
AUDIT_PAGE_MAX = 1_000

# Workers over HTTP, and streams.
LONG_POLL_SECONDS_MAX = 30.0  # proxies end what is silent for a minute
LONG_POLLS_MAX = 2_000  # requests that wait for jobs at one server; each holds a connection …
KEY_LONG_POLLS_MAX = 1_000  # … and of one key: a fleet may share one, and others still get in
REMOTE_CLAIMS_MAX = 100  # jobs of one claim; each comes with its payload, in one answer
HEARTBEAT_JOBS_MAX = 1_000  # claims that one heartbeat extends
SCHEMA_BYTES_MAX = 64 * KIB  # of a payload's schema that a worker announces; every server reads them all
SCHEMA_PARTS_MAX = 10_000  # schemas in it, with each $ref as what it refers to: a few lines can double without an end
SCHEMA_DEPTH_MAX = 100  # schemas within schemas, counted so: checking takes a few frames of the stack for each
SCHEMA_STEPS_MAX = 400_000  # keywords tried on a payload: two seconds; 256 KiB of nulls that may be numbers need them
STREAMS_MAX = 1_000  # of events, at one server; all of them are fed by one look at the store a second …
KEY_STREAMS_MAX = 250  # … and of one key: one client that opens them and never ends leaves room for others
LIVE_PAGES_MAX = 200  # pages of the dashboard that are told of changes; others look by themselves …
KEY_LIVE_PAGES_MAX = 50  # … and of one key: more than a team has open at once

# One request over HTTP.
HTTP_BODY_BYTES_MAX = 1 * MIB  # read whole before it is routed; a batch of 100 jobs has 10 KiB for each
HTTP_READ_SECONDS = 10.0  # for a head and a body to arrive: slower ones are no clients
HTTP_ANSWER_SECONDS = 45.0  # until an answer begins; a claim may wait for jobs for 30
HTTP_STOP_SECONDS = 10.0  # that a stopping server gives to requests under way
HTTP_RATE = 1_000.0  # requests per second and key, twice that at once: beyond it one client takes all there is
HTTP_FAILURES_MAX = 20  # wrong keys that an address may show at once …
HTTP_FAILURES_PER_SECOND = 0.5  # … and afterwards
HTTP_CLIENTS_MAX = 10_000  # addresses whose failures are remembered
SIFTED_ROWS_MAX = 2_000  # jobs looked at for one page of a key that sees few of them: about the time of a long page
READY_SECONDS = 2.0  # for the store to answer; a slower one is not ready

# What a job keeps.
ERRORS_KEPT_MAX = 5  # five 4 KB traces leave room for the payload in a 400 KB item
ERROR_TEXT_MAX = 4_000
LOG_ENTRIES_MAX = 50  # the full log is a file; the record carries its end
LOG_MESSAGE_MAX = 1_000
LOG_FILE_BYTES_MAX = 64 * MIB  # a handler that logs in a loop must not fill the disk
LOG_KEPT_BYTES_MAX = 16 * MIB  # lines that a worker keeps while the store is away: it has other use for its memory
METRICS_MAX = 64
HISTORY_HEAD = 100  # the first events tell how it began …
HISTORY_TAIL = 100  # … the last how it ended; what lies between is counted
HISTORY_SLACK = 64  # stored beyond head + tail before a trim, so that a trim is rare
LISTED_EDGES_MAX = 100  # dependencies and dependents shown on a record
STEPS_MAX = 1_000  # recorded answers of ctx.once per job
STAGE_LENGTH_MAX = 200
RESULT_TABLES_MAX = 200  # each is a table of the engine's; an account of DynamoDB has 2,500
RESULT_ROW_BYTES_MAX = 300 * KIB  # a DynamoDB item holds 400 KB, with names and what Holdfast adds
RESULT_KEY_BYTES_MAX = 1_000  # DynamoDB sort keys end at 1,024 bytes
VECTOR_DIMENSIONS_MAX = 16_000  # where pgvector ends

# What the machinery may do at once.
CLAIM_LIMIT = 100  # batches beyond 100 gain nothing (measured) and hold leases longer
PREFETCH_MAX = 400  # claimed ahead of free slots, only as far as the worker's pace of 50 ms allows
PREFETCH_SECONDS = 0.05
AHEAD_SECONDS_MAX = 1.0  # jobs claimed ahead that have not begun by then are given back, for others to take
SUSPECT_SECONDS_MIN = 0.2  # how long a job that shared a lost worker is put off while another such one runs, at first …
SUSPECT_SECONDS_MAX = 5.0  # … and at most: half of the time since the loss, give or take half of that
SETTLE_BATCH_MAX = 500  # one transaction; longer ones delay claims behind the writer
RELEASE_BATCH_MAX = 1_000  # dependents released in one transaction; the rest goes through the outbox
SWEEP_BATCH_MAX = 500  # promoted or rescued in one transaction
FIND_LIMIT_MAX = 1_000
CHILDREN_INLINE_MAX = 100  # children in the commit that brings them; more are staged before it, and unpacked after
CHILDREN_PART_MAX = 500  # children staged, or unpacked, in one transaction; claims of others come in between
STAGED_PART_BYTES_MAX = 4 * MIB  # of such a part: what a process sends in one piece, and holds in memory twice
CHILDREN_LOADED_MAX = 1_000  # of ctx.children, before the handler is entered; the rest is read page by page
STAGES_MAX = 100  # of a pipeline: its root submits them in one commit
TREE_JOBS_MAX = 1_000  # jobs that app.tree loads; a larger tree is read by pages of children
TREE_EDIT_MAX = 50_000  # jobs that one cancel, retry or rerun of a tree changes, in pages; they are counted in memory
ROWS_PART_MAX = 500  # rows of a result table in one transaction; the writer is not held for long
ROWS_PART_BYTES_MAX = 4 * MIB  # of such a part: wide rows make it short
ROWS_DROPPED_MAX = 5_000  # rows of an archived job removed in one transaction; removing costs less than writing
BATCH_WAIT_SECONDS_MAX = 60.0  # a job that is held for longer by a batch that does not fill is better run
BATCH_SIZE_MAX = 1_000  # jobs in one call of a batch handler; each holds a claim, and is extended with the others
BATCH_ITEM_ROWS_BYTES_MAX = 4 * MIB  # rows that one job of a batch keeps in memory until its call has answered
LATEST_LOOKED_MAX = 200  # jobs of a subject looked at for the latest, where the one that was has been run again
MOVE_PAGE = 500  # records copied in one commit when a queue moves to another store …
MOVE_PAGE_BYTES_MAX = 4 * MIB  # … and about how large they may be together: they are in memory a few times over
BULK_MAX = 1_000  # jobs that one click changes: within the time of one request on every engine; said again, it goes on
BULK_STEP = 100  # of them in one transaction; claims come in between
PICTURE_JOBS_MAX = 300  # jobs that are loaded for a picture of a tree; beyond that nobody sees anything in it
SNOOZES_MAX = 100  # a job that only ever snoozes is stuck: from here on a snooze is a failure
GIVE_BACKS_MAX = 100  # the same for a job that is handed back by every worker that takes it
WAITS_MAX = 100  # and for a parent that waits for new children whenever the last have ended
RECORD_INTERVAL_SECONDS = 1.0  # durable progress, at most one write per second and job
RESULT_POLL_SECONDS = 0.5  # waiting for a result where no signal arrives

SCHEDULE_LATE_SECONDS = 60.0  # a tick that is decided so late still counts as on time under missed="skip"
TICKS_PER_FIRING_MAX = 50  # jobs of one schedule in one commit; DynamoDB takes 100 items
RETIRE_BATCH_MAX = 500  # ended jobs looked at in one step of retention; others get the store in between
RETIRE_INTERVAL_SECONDS = 60.0  # between passes of retention while they find something …
RETIRE_REST_SECONDS = 600.0  # … and while they do not
FAIR_KEYS_MAX = 1_000  # tenants that take turns in one claim; of more, those that wait longest
FAIR_KEY_SECONDS = 3600  # how long the turn of a tenant is remembered; without it one comes at most one turn early
COUNTERS_DAYS = 30  # per-minute counters; plots do not look further back

# Defaults that users change by option or HOLDFAST_….
LEASE_SECONDS = 60.0
POLL_SECONDS = 5.0  # the fallback; signals wake a worker long before
CONCURRENCY = 10
GRACE_SECONDS = 30.0  # how long a stopping worker lets handlers finish
MOVE_GRACE_SECONDS = 60.0  # how long a queue that moves waits for what runs, beyond a lease
MAX_ATTEMPTS = 5
TIMEOUT_SECONDS = 3600.0
BATCH_SIZE = 50
BATCH_WAIT_SECONDS = 0.05
PRIORITY = 50
KEEP_COMPLETED_DAYS = 7
KEEP_CANCELLED_DAYS = 7
KEEP_FAILED_DAYS = 30
KEEP_ARCHIVE_DAYS = 365  # about half a kilobyte a job; a guard "forever" stands as long as its job's row here
