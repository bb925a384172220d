"""Every statement of the SQLite engine goes through the index that its header names; none walks the table."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from backstay.engines.sqlite import connection, read, settle
from backstay.engines.sqlite.connection import load


def by_id(name: str, *, covering: bool = False, left: bool = False) -> str:
    """A job is looked up by its id."""
    index = f"{'COVERING ' if covering else ''}INDEX sqlite_autoindex_job_1"
    return f"SEARCH {name} USING {index} (job_id=?){' LEFT-JOIN' if left else ''}"


def by_seq(name: str, *, left: bool = False) -> str:
    """A job, its place or its detail is looked up by its position."""
    return f"SEARCH {name} USING INTEGER PRIMARY KEY (rowid=?){' LEFT-JOIN' if left else ''}"


BY_ID = by_id("job")
NEXT_VERSION = "queue=? AND job_type=? AND payload_version>?"
OF_RATE = "rate_key=? AND rate_count=? AND rate_micros=?"
RATE_LANE = f"{OF_RATE} AND queue=? AND job_type=? AND payload_version=?"
KEY_LANE = "concurrency_key=? AND queue=? AND job_type=? AND payload_version=?"
AT_LEVEL = "queue=? AND job_type=? AND parked=? AND priority=?"
OF_LIMIT = "SEARCH l USING PRIMARY KEY (of=? AND name=?)"
SIGHT = "queue=? AND job_type=? AND fair=? AND parked=?"  # of one lane
LINE = f"{SIGHT} AND priority=? AND scheduled_for=? AND job_id=?"
BEHIND = f"{SIGHT} AND priority=? AND (scheduled_for,job_id)>(?,?)"  # a place
LED = by_seq("j")
# All that finds the place of a job, and its detail.
JOINED = [*(by_seq(each, left=True) for each in "derlw"), f"SEARCH p USING PRIMARY KEY ({LINE}) LEFT-JOIN"]
DONOR = [step.replace(" USING", "_donor USING") for step in JOINED]

UNCOUNTED = "SEARCH job USING INTEGER PRIMARY KEY (rowid>?)"  # the last jobs by arrival

# What each statement's plan must say.
PLANS = {
    "add_tally": [],
    "ahead": [f"SEARCH ready USING PRIMARY KEY ({SIGHT})"],
    "alone_candidates": [
        "SCAN ready USING INDEX ready_alone",
        "SEARCH q USING PRIMARY KEY (name=?)",
        OF_LIMIT,
    ],
    "append_output": [by_id("j", covering=True), by_seq("r")],
    "archive": [by_seq("j"), *JOINED],
    "archive_files": [
        "SCAN a USING INDEX archive_files",
        "SEARCH e USING INDEX ended_content (content_hash=? AND job_type=?)",
        by_seq("d", left=True),
    ],
    "archive_get": ["SEARCH archive USING PRIMARY KEY (job_id=?)"],
    "archive_over": ["SEARCH archive USING INDEX archive_age (archived_at<?)"],
    "archived_tables": ["SEARCH archive USING PRIMARY KEY (job_id=?)"],
    "archived_version": ["SEARCH archive USING PRIMARY KEY (job_id=?)"],
    "ask_no_queues": [],
    "ask_no_types": [],
    "ask_no_paused": ["SEARCH temp.asked_queue USING PRIMARY KEY (name=?)", "SCAN queue"],
    "ask_no_paused_types": [
        "SEARCH temp.asked_type USING PRIMARY KEY (name=?)",
        "SEARCH run_limit USING PRIMARY KEY (of=?)",
    ],
    "ask_queues": [],
    "ask_types": [],
    "audit": [],
    "audited": ["SEARCH audit USING PRIMARY KEY (entry_id<?)"],
    "awaited_by": ["SEARCH x USING INDEX edge_child (child_id=?)", by_id("j", covering=True)],
    "awaited_later": [by_seq("later")],
    "awaited_ready": [f"SEARCH ready USING PRIMARY KEY ({LINE})"],
    "awaited_running": [by_seq("running")],
    "awaited_waiting": [by_seq("waiting")],
    "awaits": [by_seq("waiting")],
    "beat": [],
    "bring_back": [f"SEARCH ready USING PRIMARY KEY ({LINE})"],
    "candidates": [
        "SEARCH queue USING PRIMARY KEY (name=?)",
        "SEARCH run_limit USING PRIMARY KEY (of=? AND name=?)",
        f"SEARCH ready USING PRIMARY KEY ({SIGHT})",
    ],
    "children": [
        "SEARCH j USING COVERING INDEX job_parent (parent_job_id=? AND job_id>?)",
        by_seq("e", left=True),
        by_seq("r", left=True),
        by_seq("l", left=True),
        by_seq("w", left=True),
    ],
    "claim": [],
    "claim_head": [f"SEARCH ready USING PRIMARY KEY ({SIGHT})"],
    "claimed": [by_seq("r"), by_seq("j"), by_seq("d", left=True)],
    "claimed_before": ["SCAN running"],
    "cleaned": ["SEARCH archive USING PRIMARY KEY (job_id=?)"],
    "complete": [by_id("j"), by_seq("r"), by_seq("d", left=True)],
    "completed": [by_seq("running"), by_id("j", covering=True)],
    "completed_some": [by_seq("running"), by_id("j", covering=True), by_seq("e"), by_seq("job")],
    "count": [],
    "count_children": [by_id("job", covering=True)],
    "count_down": [by_seq("waiting")],
    "count_parts": ["SEARCH staged USING COVERING INDEX sqlite_autoindex_staged_1 (job_id=? AND attempt=? AND part<?)"],
    "count_sent": ["SEARCH step USING PRIMARY KEY (job_id=? AND kind=?)"],
    "count_submits": ["SEARCH job USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"],
    "count_tables": ["SCAN result_table"],
    "count_workers": ["SCAN worker"],
    "counters": [
        "SEARCH counter USING PRIMARY KEY (minute>? AND minute<?)",
        "SEARCH job USING INTEGER PRIMARY KEY (rowid>?)",
    ],
    "counts": ["SCAN tally", UNCOUNTED, "SCAN running"],
    "dead": ["SCAN ended USING COVERING INDEX ended_dead", by_seq("j"), by_seq("d", left=True)],
    "dedup_key_of": [BY_ID],
    "dedup_target": ["SEARCH dedup USING PRIMARY KEY (dedup_key=?)"],
    "depths": [
        "SCAN tally",
        UNCOUNTED,
        "SCAN r",
        by_seq("j"),
        by_seq("d", left=True),
        f"SEARCH r USING PRIMARY KEY ({SIGHT} AND priority=?)",
        "SEARCH l USING COVERING INDEX later_kind (job_type=? AND queue=? AND priority=? AND status=?)",
        "SEARCH w USING COVERING INDEX waiting_kind (job_type=? AND queue=? AND priority=?)",
    ],
    "donated": [by_id("j", covering=True), by_seq("e"), by_seq("d", left=True)],
    "declarations": ["SCAN declaration"],
    "drop_archived": ["SEARCH archive USING PRIMARY KEY (job_id=?)"],
    "drop_entries": ["SEARCH audit USING PRIMARY KEY (entry_id=?)", "SEARCH audit USING PRIMARY KEY (entry_id<?)"],
    "drop_guards": ["SEARCH dedup USING INDEX dedup_job (job_id=?)"],
    "drop_key": ["SEARCH api_key USING PRIMARY KEY (key_id=?)"],
    "drop_limit": ["SEARCH run_limit USING PRIMARY KEY (of=? AND name=?)"],
    "drop_mailbox": ["SEARCH mailbox USING PRIMARY KEY (event_key=?)"],
    "drop_meta": ["SEARCH meta USING PRIMARY KEY (name=?)"],
    "drop_minutes": ["SEARCH counter USING PRIMARY KEY (minute<?)"],
    "drop_part": ["SEARCH staged USING INDEX sqlite_autoindex_staged_1 (job_id=? AND attempt=? AND part=?)"],
    "drop_parts_from": ["SEARCH staged USING INDEX sqlite_autoindex_staged_1 (job_id=? AND attempt=? AND part>?)"],
    "drop_queue": ["SEARCH queue USING PRIMARY KEY (name=?)"],
    "drop_release": ["SEARCH release_due USING PRIMARY KEY (parent_id=?)"],
    "drop_schedule": ["SEARCH schedule USING PRIMARY KEY (name=?)"],
    "drop_tally": ["SEARCH tally USING PRIMARY KEY (job_type=? AND queue=? AND priority=? AND status=?)"],
    "drop_worker": ["SEARCH worker USING PRIMARY KEY (worker_id=?)"],
    "due": ["SEARCH later USING COVERING INDEX later_due (scheduled_for<?)"],
    "edges_from": ["SEARCH edge USING INDEX edge_child (child_id=?)"],
    "edges_of": [
        "SEARCH edge USING COVERING INDEX edge_child (child_id=?)",
        "SEARCH edge USING PRIMARY KEY (parent_id=?)",
    ],
    "enter_ended": [],
    "enter_later": [],
    "enter_ready": [],
    "enter_waiting": [],
    "event_steps": ["SEARCH step USING PRIMARY KEY (job_id=? AND kind=?)"],
    "events_of": ["SEARCH event USING PRIMARY KEY (seq=?)"],
    "expired": ["SCAN running", by_seq("j"), by_seq("d", left=True)],
    "export_archive": ["SEARCH archive USING PRIMARY KEY (job_id>?)"],
    "export_audit": ["SEARCH audit USING PRIMARY KEY (entry_id>?)"],
    "export_counters": ["SEARCH counter USING PRIMARY KEY ((minute,job_type,queue,priority,outcome)>(?,?,?,?,?))"],
    "export_guards": ["SEARCH dedup USING PRIMARY KEY (dedup_key>?)"],
    "export_jobs": ["SEARCH j USING INTEGER PRIMARY KEY (rowid>?)", *JOINED, "SEARCH v USING PRIMARY KEY (seq=?)"],
    "export_mailboxes": ["SEARCH mailbox USING PRIMARY KEY (event_key>?)"],
    "export_output": ["SEARCH output USING PRIMARY KEY ((job_id,attempt,take,last)>(?,?,?,?))"],
    "export_steps": ["SEARCH step USING PRIMARY KEY ((job_id,kind,name)>(?,?,?))"],
    "export_totals": ["SEARCH counter_sum USING PRIMARY KEY ((job_type,queue,outcome)>(?,?,?))"],
    "extend": [by_seq("running"), by_id("j", covering=True), by_seq("r")],
    "fair_ahead": [f"SEARCH ready USING COVERING INDEX ready_fair ({AT_LEVEL} AND fairness_key=?)"],
    "fair_head": [f"SEARCH ready USING INDEX ready_fair ({AT_LEVEL} AND fairness_key=?)"],
    "fair_keys": [
        f"SEARCH ready USING COVERING INDEX ready_fair ({AT_LEVEL} AND fairness_key>?)",
        f"SEARCH ready USING INDEX ready_fair ({AT_LEVEL} AND fairness_key=?)",
        "SEARCH fair_key USING PRIMARY KEY (queue=? AND job_type=? AND fairness_key=?)",
    ],
    "fair_lane": ["SEARCH fair_lane USING PRIMARY KEY (queue=? AND job_type=?)"],
    "fair_lanes": [
        "SEARCH ready USING COVERING INDEX ready_fair ((queue,job_type)>(?,?))",
        "SEARCH ready USING COVERING INDEX ready_fair (queue=? AND job_type>?)",
        "SEARCH asked_type USING PRIMARY KEY (name>?)",
        "SEARCH ready USING COVERING INDEX ready_fair (queue>?)",
        "SEARCH asked_queue USING PRIMARY KEY (name>?)",
        "SEARCH r USING COVERING INDEX ready_fair (queue=? AND job_type=? AND parked=?)",
    ],
    "fair_level": [f"SEARCH ready USING PRIMARY KEY ({SIGHT} AND priority<?)"],
    "fair_position": ["SEARCH fair_key USING PRIMARY KEY (queue=? AND job_type=? AND fairness_key=?)"],
    "fire": ["SEARCH schedule USING PRIMARY KEY (name=?)"],
    "fired_into": ["SEARCH schedule USING PRIMARY KEY (name=?)"],
    "forget_idle_keys": ["SCAN fair_key", "SEARCH l USING PRIMARY KEY (queue=? AND job_type=?)"],
    "forget_steps": ["SEARCH step USING PRIMARY KEY (job_id=?)"],
    "forget_workers": ["SCAN former_worker"],
    "former_workers": ["SCAN former_worker"],
    "get": [by_id("j"), *JOINED, "SEARCH v USING PRIMARY KEY (seq=?)"],
    "get_by_seq": [by_seq("j"), *JOINED, "SEARCH v USING PRIMARY KEY (seq=?)"],
    "has_entries_before": ["SEARCH audit USING PRIMARY KEY (entry_id<?)"],
    "has_minutes_before": ["SEARCH counter USING PRIMARY KEY (minute<?)"],
    "held_by": ["SCAN running", by_seq("j"), by_seq("d", left=True)],
    "holding": [by_id("j", covering=True), by_seq("r", left=True)],
    "insert": [],
    "insert_alike": ["SCAN carray VIRTUAL TABLE INDEX 1:"],
    "insert_edge": [],
    "insert_join": [],
    "insert_later": ["SEARCH job USING INTEGER PRIMARY KEY (rowid>?)"],
    "insert_ready": ["SEARCH job USING INTEGER PRIMARY KEY (rowid>?)"],
    "insert_special": [],
    "insert_usual": [],
    "is_taken": ["SCAN sqlite_schema"],
    "job_types": ["SCAN job_type"],
    "joinable": ["SEARCH j USING INDEX job_content (content_hash=? AND job_type=?)", by_seq("e"), by_seq("d")],
    "keep_artifact": [by_seq("ended"), by_id("job", covering=True)],
    "keep_reports": [by_id("j", covering=True)],
    "key_ahead": [
        f"SEARCH ready USING COVERING INDEX ready_parked ({KEY_LANE})",
        f"SEARCH ready USING COVERING INDEX ready_key ({KEY_LANE} AND priority>?)",
    ],
    "key_in_sight": [f"SEARCH ready USING COVERING INDEX ready_key ({KEY_LANE})"],
    "key_running": ["SEARCH running USING COVERING INDEX running_key (concurrency_key=?)"],
    "keys": ["SCAN api_key"],
    "keys_named": ["SEARCH api_key USING PRIMARY KEY (key_id=?)"],
    "known": [by_id("job", covering=True)],
    "known_anywhere": [by_id("job", covering=True), "SEARCH archive USING PRIMARY KEY (job_id=?)"],
    "knows_sent": ["SEARCH step USING PRIMARY KEY (job_id=? AND kind=? AND name=?)"],
    "lane_in_order": [
        f"SEARCH ready USING PRIMARY KEY ({BEHIND})",
        f"SEARCH ready USING PRIMARY KEY ({SIGHT} AND priority<?)",
    ],
    "lanes": [
        "SEARCH ready USING PRIMARY KEY ((queue,job_type)>(?,?))",
        "SEARCH ready USING PRIMARY KEY (queue=? AND job_type>?)",
        "SEARCH asked_type USING PRIMARY KEY (name>?)",
        "SEARCH ready USING PRIMARY KEY (queue>?)",
        "SEARCH asked_queue USING PRIMARY KEY (name>?)",
        f"SEARCH r USING PRIMARY KEY ({SIGHT})",
    ],
    "lanes_in_order": [
        "SEARCH ready USING PRIMARY KEY (queue=? AND job_type=? AND fair=? AND parked>?)",
        "SEARCH ready USING PRIMARY KEY (queue=? AND job_type=? AND fair>?)",
        "SEARCH ready USING PRIMARY KEY (queue=? AND job_type>?)",
        "SEARCH ready USING PRIMARY KEY (queue>?)",
        f"SEARCH r USING PRIMARY KEY ({BEHIND})",
        f"SEARCH r USING PRIMARY KEY ({SIGHT} AND priority<?)",
    ],
    "last_seq": ["SEARCH job", "SEARCH meta USING PRIMARY KEY (name=?)"],
    "latest_of": ["SEARCH event USING PRIMARY KEY (seq=?)"],
    "leave": [f"SEARCH ready USING PRIMARY KEY ({LINE})"],
    "leave_above": [f"SEARCH ready USING PRIMARY KEY ({SIGHT} AND priority>?)"],
    "leave_ended": [by_seq("ended")],
    "leave_head": [f"SEARCH ready USING PRIMARY KEY ({SIGHT} AND priority=? AND (scheduled_for,job_id)<(?,?))"],
    "leave_later": [by_seq("later")],
    "leave_ready": [f"SEARCH ready USING PRIMARY KEY ({LINE})"],
    "leave_running": [by_seq("running")],
    "leave_waiting": [by_seq("waiting")],
    "limit": ["SEARCH run_limit USING PRIMARY KEY (of=? AND name=?)"],
    "limited_queues": ["SCAN queue"],
    "limits": ["SCAN run_limit"],
    "limits_named": ["SEARCH run_limit USING PRIMARY KEY (of=? AND name=?)"],
    "line": [by_id("j"), by_seq("d", left=True), f"SEARCH p USING PRIMARY KEY ({LINE}) LEFT-JOIN"],
    "lines_of": [by_seq("j"), by_seq("d", left=True), f"SEARCH p USING PRIMARY KEY ({LINE})"],
    "mailbox": ["SEARCH mailbox USING PRIMARY KEY (event_key=?)"],
    "many_pending": ["SCAN ready"],
    "meet_edge": ["SEARCH edge USING PRIMARY KEY (parent_id=? AND child_id=?)"],
    "meta": ["SEARCH meta USING PRIMARY KEY (name=?)"],
    "misplaced": ["SCAN job", by_seq("j", left=True), *JOINED],
    "move_triggers": ["SCAN sqlite_schema"],
    "need": [by_id("j"), *JOINED, "SEARCH archive USING PRIMARY KEY (job_id=?)"],
    "needed": [
        "SEARCH job USING COVERING INDEX job_parent (parent_job_id=?)",
        "SEARCH x USING COVERING INDEX edge_unmet (parent_id=?)",
        by_id("j", covering=True),
        by_seq("w"),
        "SEARCH release_due USING PRIMARY KEY (parent_id=?)",
        "SEARCH unpack_due USING PRIMARY KEY (job_id=?)",
    ],
    "next_due": ["SEARCH later USING COVERING INDEX later_due", "SEARCH queue USING PRIMARY KEY"],
    "next_parts": ["SEARCH staged USING INDEX sqlite_autoindex_staged_1 (job_id=? AND attempt=?)"],
    "next_timeout": ["SEARCH waiting USING COVERING INDEX waiting_wakes (wakes_at>?)"],
    "note": [by_seq("running"), by_id("job", covering=True)],
    "old_mailboxes": ["SEARCH mailbox USING INDEX mailbox_expires (expires_at<?)"],
    "oldest_minute": ["SEARCH counter USING PRIMARY KEY (minute>?)"],
    "outcomes_of": [
        "SEARCH x USING INDEX edge_child (child_id=?)",
        by_id("j", covering=True, left=True),
        by_seq("e", left=True),
        by_seq("r", left=True),
        by_seq("l", left=True),
        by_seq("w", left=True),
        "SEARCH a USING PRIMARY KEY (job_id=?) LEFT-JOIN",
    ],
    "output": ["SEARCH output USING PRIMARY KEY (job_id=? AND attempt=? AND take=? AND last>?)"],
    "output_end": ["SEARCH output USING PRIMARY KEY (job_id=?)"],
    "overdue": [
        "SEARCH ready USING INDEX ready_expiring (expires_at<?)",
        "SEARCH later USING COVERING INDEX later_expiring (expires_at<?)",
        "SEARCH waiting USING COVERING INDEX waiting_expiring (expires_at<?)",
        by_seq("j"),
    ],
    "own_tables": ["SCAN sqlite_schema"],
    "park": [f"SEARCH ready USING PRIMARY KEY ({LINE})"],
    "parked_keys": [
        "SCAN ready USING COVERING INDEX ready_parked",
        "SEARCH ready USING COVERING INDEX ready_parked (concurrency_key>?)",
        "SEARCH ready USING INDEX ready_parked (concurrency_key=?)",
    ],
    "parked_of": [
        "SEARCH ready USING COVERING INDEX ready_parked (concurrency_key=?)",
        f"SEARCH ready USING COVERING INDEX ready_parked (concurrency_key=? AND {NEXT_VERSION})",
        "SEARCH ready USING COVERING INDEX ready_parked (concurrency_key=? AND queue=? AND job_type>?)",
        "SEARCH ready USING COVERING INDEX ready_parked (concurrency_key=? AND queue>?)",
    ],
    "pauses_over": ["SCAN queue", "SCAN run_limit"],
    "parked_limit": ["SEARCH ready USING INDEX ready_parked (concurrency_key=?)"],
    "pending_in": ["SEARCH ready USING PRIMARY KEY (queue=?)"],
    "plain_head": [f"SEARCH ready USING PRIMARY KEY ({SIGHT} AND priority=?)"],
    "promote_event": [by_seq("later")],
    "promote_leave": [by_seq("later")],
    "promote_long": [by_seq("later")],
    "promote_tally": [by_seq("later")],
    "promote_ready": [by_seq("l"), by_seq("j"), by_seq("d", left=True)],
    "queue": ["SEARCH queue USING PRIMARY KEY (name=?)"],
    "queues": ["SCAN queue"],
    "rate_ahead": [
        f"SEARCH ready USING COVERING INDEX ready_rate_parked ({RATE_LANE})",
        f"SEARCH ready USING COVERING INDEX ready_rate ({RATE_LANE} AND priority>?)",
    ],
    "rate_bucket": [f"SEARCH rate USING PRIMARY KEY ({OF_RATE})"],
    "rate_due": [
        "SEARCH rate USING COVERING INDEX rate_due (due_at<?)",
        "SEARCH rate USING COVERING INDEX rate_set (set_at>?)",
    ],
    "rate_forget": ["SEARCH rate USING INDEX rate_full (full_at<?)"],
    "rate_in_sight": [f"SEARCH ready USING COVERING INDEX ready_rate ({RATE_LANE})"],
    "rate_jumped": ["SEARCH rate USING COVERING INDEX rate_set (set_at>?)"],
    "rate_look_again": ["SEARCH rate USING PRIMARY KEY (rate_key=?)"],
    "rate_lanes": [
        f"SEARCH ready USING COVERING INDEX ready_rate_parked ({OF_RATE})",
        f"SEARCH ready USING COVERING INDEX ready_rate_parked ({OF_RATE} AND {NEXT_VERSION})",
        f"SEARCH ready USING COVERING INDEX ready_rate_parked ({OF_RATE} AND queue=? AND job_type>?)",
        f"SEARCH ready USING COVERING INDEX ready_rate_parked ({OF_RATE} AND queue>?)",
    ],
    "rate_left_sight": ["SEARCH rate USING PRIMARY KEY (rate_key=?)"],
    "rate_next": ["SEARCH rate USING COVERING INDEX rate_due (due_at<?)"],
    "rate_of": [BY_ID],
    "rate_save": [],
    "rate_unpark": [
        f"SEARCH ready USING COVERING INDEX ready_rate_parked ({RATE_LANE})",
        f"SEARCH ready USING COVERING INDEX ready_rate ({RATE_LANE})",
    ],
    "record_step": [by_id("j", covering=True), by_seq("r")],
    "references": ["SCAN m", "SCAN f VIRTUAL TABLE INDEX 0:"],
    "release_due": ["SCAN release_due"],
    "release_needed": [
        "SCAN release_due",
        "SCAN ready USING COVERING INDEX ready_parked",
        "SCAN fair_key",
        "SCAN staged USING COVERING INDEX sqlite_autoindex_staged_1",
        "SCAN unpack_due",
    ],
    "remember_worker": ["SEARCH worker USING PRIMARY KEY (worker_id=?)"],
    "remove_detail": [by_seq("detail"), by_id("j", covering=True)],
    "remove_ended": [by_seq("ended"), by_id("j", covering=True)],
    "remove_events": ["SEARCH event USING PRIMARY KEY (seq=?)", by_id("j", covering=True)],
    "remove_job": [by_id("job", covering=True)],
    "remove_kin": [by_seq("detail"), by_id("j"), by_id("p", covering=True)],
    "remove_staged": ["SEARCH staged USING COVERING INDEX sqlite_autoindex_staged_1 (job_id=?)"],
    "replace_output": ["SEARCH output USING PRIMARY KEY (job_id=? AND (attempt,take)<(?,?))"],
    "restore_archive": [],
    "restore_children": [],
    "restore_counter": [],
    "restore_edge": [],
    "restore_guard": [],
    "restore_limit": [],
    "restore_output": [],
    "restore_mailbox": [],
    "restore_queue": [],
    "restore_step": [],
    "restore_sum": [],
    "result_names": ["SCAN result_table"],
    "retirable": [
        "SEARCH j USING INTEGER PRIMARY KEY (rowid>?)",
        by_seq("e", left=True),
        "SEARCH member USING COVERING INDEX job_root (root_job_id=?)",
    ],
    "retire": [by_seq("job")],
    "retire_details": [by_seq("detail")],
    "retire_edges": ["SEARCH edge USING INDEX edge_child (child_id=?)"],
    "retire_ended": [by_seq("ended")],
    "retire_events": ["SEARCH event USING PRIMARY KEY (seq=?)"],
    "retire_standing": [
        by_seq("e"),
        by_seq("j"),
        "SEARCH release_due USING PRIMARY KEY (parent_id=?)",
        by_seq("d", left=True),
        "SEARCH member USING COVERING INDEX job_root (root_job_id=?)",
        by_id("top", covering=True),
    ],
    "retire_output": ["SEARCH output USING PRIMARY KEY (job_id=?)"],
    "retire_steps": ["SEARCH step USING PRIMARY KEY (job_id=?)"],
    "retire_tally": [by_seq("e"), by_seq("j"), by_seq("d", left=True)],
    "reusable": [
        "SEARCH e USING INDEX ended_content (content_hash=? AND job_type=? AND completed_at>?)",
        by_seq("j"),
        by_seq("d", left=True),
        by_id("rows_of", covering=True),
        by_seq("r"),
        "SEARCH k USING PRIMARY KEY (job_id=?)",
        by_id("ran", covering=True),
        by_seq("o"),
        "SEARCH a USING PRIMARY KEY (job_id=?)",
    ],
    "revise": [by_seq("job")],
    "root_of": [BY_ID],
    "rows_add_table": [by_id("job", covering=True)],
    "rows_holder": [by_id("j", covering=True), by_seq("r", left=True), by_seq("d", left=True)],
    "rows_latest": [
        "SEARCH e USING COVERING INDEX ended_latest (subject=? AND job_type=?)",
        by_seq("j"),
        by_seq("d", left=True),
        by_id("j_donor"),
        *DONOR,
        "SEARCH k USING PRIMARY KEY (job_id=?)",
    ],
    "rows_source": [by_id("j"), *JOINED, by_id("j_donor"), *DONOR, "SEARCH a USING PRIMARY KEY (job_id=?)"],
    "save_counted": ["SEARCH meta USING PRIMARY KEY (name=?)"],
    "save_dedup": [],
    "save_fair_after": [],
    "save_fair_key": [],
    "save_fair_lane": [],
    "save_declaration": ["SEARCH declaration USING PRIMARY KEY (origin=?)"],
    "save_key": [],
    "save_limit": [],
    "save_mailbox": [],
    "save_meta": [],
    "save_queue": [],
    "save_release": [],
    "save_schedule": [],
    "save_sent": [],
    "save_table": [],
    "save_type": [],
    "save_unpack": [],
    "schedules_after": ["SEARCH schedule USING PRIMARY KEY (name>?)"],
    "schedules_named": ["SEARCH schedule USING PRIMARY KEY (name=?)"],
    "seq_of": [by_id("job", covering=True)],
    "staged_stale": [
        by_seq("staged"),
        "SCAN s USING COVERING INDEX sqlite_autoindex_staged_1",
        "SEARCH d USING PRIMARY KEY (job_id=? AND attempt=?)",
        by_id("j", covering=True),
        by_seq("r"),
    ],
    "standings": [by_id("j"), *JOINED, "SEARCH v USING PRIMARY KEY (seq=?)"],
    "status": [
        by_id("j", covering=True),
        by_seq("e", left=True),
        by_seq("r", left=True),
        by_seq("l", left=True),
        by_seq("w", left=True),
        "SEARCH archive USING PRIMARY KEY (job_id=?)",
    ],
    "statuses": [
        by_id("j", covering=True),
        by_seq("e", left=True),
        by_seq("r", left=True),
        by_seq("l", left=True),
        by_seq("w", left=True),
    ],
    "stay_running": [by_seq("running")],
    "step": ["SEARCH step USING PRIMARY KEY (job_id=? AND kind=? AND name=?)"],
    "steps": ["SEARCH step USING PRIMARY KEY (job_id=?)"],
    "store_part": [],
    "sum_counters": ["SEARCH counter USING PRIMARY KEY (minute>? AND minute<?)"],
    "table": ["SEARCH result_table USING PRIMARY KEY (name=?)"],
    "tables": ["SCAN result_table"],
    "tally_submits": ["SEARCH job USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"],
    "timed_out": ["SEARCH w USING COVERING INDEX waiting_wakes (wakes_at>? AND wakes_at<?)", LED],
    "totals": [
        "SCAN counter_sum",
        "SEARCH counter USING PRIMARY KEY (minute>?)",
        "SEARCH job USING INTEGER PRIMARY KEY (rowid>?)",
    ],
    "tree_members": [by_id("j"), by_seq("e", left=True), "SEARCH j USING INDEX job_root (root_job_id=?)"],
    "trim_history": ["SEARCH event USING PRIMARY KEY (seq=? AND version>? AND version<?)"],
    "type_running": ["SCAN r", by_seq("j")],
    "type_of": ["SEARCH job_type USING PRIMARY KEY (job_type=?)"],
    "under_way": ["SCAN running", "SCAN release_due", "SCAN unpack_due"],
    "unmeet": ["SEARCH edge USING INDEX edge_child (child_id=?)", by_id("j", covering=True), by_seq("e")],
    "unmet_edges": [
        "SEARCH x USING COVERING INDEX edge_unmet (parent_id=?)",
        by_id("j"),
        *JOINED,
        "SEARCH v USING PRIMARY KEY (seq=?)",
    ],
    "unpack_mark": ["SCAN unpack_due"],
    "unpacked": ["SEARCH unpack_due USING PRIMARY KEY (job_id=? AND attempt=?)"],
    "unpark": [
        f"SEARCH ready USING COVERING INDEX ready_parked ({KEY_LANE})",
        f"SEARCH ready USING COVERING INDEX ready_key ({KEY_LANE})",
    ],
    "upcoming": ["SCAN schedule USING INDEX schedule_next"],
    "version_of": ["SEARCH schedule USING PRIMARY KEY (name=?)"],
    "wait_alone": [
        "SCAN ready USING COVERING INDEX ready_alone",
        "SEARCH q USING PRIMARY KEY (name=?)",
        OF_LIMIT,
    ],
    "workers_between": ["SEARCH worker USING PRIMARY KEY (worker_id>? AND worker_id<?)"],
    "workers_named": ["SEARCH worker USING PRIMARY KEY (worker_id=?)"],
    "write_detail": [],
    "write_event": [],
}
FIND_PLANS = {
    "subject": ["SEARCH j USING INDEX job_subject (subject=?)"],
    "content_hash": ["SEARCH j USING INDEX job_content (content_hash=?)"],
    "parent": ["SEARCH j USING INDEX job_parent (parent_job_id=?)"],
    "root": ["SEARCH j USING INDEX job_root (root_job_id=?)"],
    "holders": ["SEARCH lead USING INDEX running_key (concurrency_key=?)", LED],
    "processing": ["SCAN lead", LED],
    "pending": ["SCAN lead", LED],
    "concurrency_key": ["SEARCH j USING INDEX job_key (concurrency_key=?)"],
    "later": ["SCAN lead", LED],
    "waiting": ["SCAN lead", LED],
    "ended_badly": ["SEARCH lead USING INDEX ended_badly (status=?)", LED],
    "completed": ["SCAN lead", LED],
    "arrival": ["SCAN j"],
}

# Small tables and partial indexes over few rows, which are walked from end to end; and what counts all there is, on
# purpose. Some look at the first row only.
WALKS = {
    "alone_candidates": ["SCAN ready USING INDEX ready_alone"],  # which holds nothing else, and that is little
    "ask_no_paused": ["SCAN queue"],
    "claimed_before": ["SCAN running"],  # which holds what runs, and that is little, too
    "counts": ["SCAN running"],
    "dead": ["SCAN ended USING COVERING INDEX ended_dead"],  # which holds nothing else
    "depths": [
        "SCAN ready EXISTS USING COVERING INDEX ready_fair",
        "SCAN ready EXISTS USING COVERING INDEX ready_parked",
        "SCAN ready EXISTS USING COVERING INDEX ready_rate_parked",
    ],  # the first entry of each
    "expired": ["SCAN running"],
    "forget_idle_keys": ["SCAN fair_key"],
    "held_by": ["SCAN running"],
    "keys": ["SCAN api_key"],
    "limited_queues": ["SCAN queue"],
    "limits": ["SCAN run_limit"],
    "lanes_in_order": ["SCAN ready"],  # its first entry
    "many_pending": ["SCAN ready"],
    "misplaced": [
        "SCAN job",
        "SCAN ended",
        "SCAN ready",
        "SCAN running",
        "SCAN later USING COVERING INDEX later_due",
        "SCAN waiting USING COVERING INDEX waiting_kind",
        "SCAN ready",
    ],  # some rows of each
    "parked_keys": ["SCAN ready USING COVERING INDEX ready_parked"],  # its first entry
    "pauses_over": ["SCAN queue", "SCAN run_limit"],
    "queues": ["SCAN queue"],
    "release_due": ["SCAN release_due"],
    "release_needed": [
        "SCAN release_due",
        "SCAN ready USING COVERING INDEX ready_parked",
        "SCAN fair_key",
        "SCAN staged USING COVERING INDEX sqlite_autoindex_staged_1",
        "SCAN unpack_due",
    ],
    "totals": ["SCAN counter_sum"],
    "under_way": ["SCAN running", "SCAN release_due", "SCAN unpack_due"],
    "unpack_mark": ["SCAN unpack_due"],
    "upcoming": ["SCAN schedule USING INDEX schedule_next"],
    "wait_alone": ["SCAN ready USING COVERING INDEX ready_alone"],
}
# Sorts of a handful of rows: those that run, groups of errors or of active jobs, keys that are due,
# the trees of a batch, the lanes of a search and the first jobs of each, workers that have left, the states of what a
# job depends on, the kinds that are counted, or the spans over which the minutes of some kinds are summed.
SORTS = {
    "count_submits", "counters", "counts", "dead", "depths", "expired", "former_workers", "held_by", "lane_in_order",
    "lanes_in_order", "misplaced",
    "outcomes_of", "promote_tally", "rate_due", "rate_unpark", "retire_standing", "retire_tally", "sum_counters",
    "tally_submits", "totals", "unpark", "wait_alone",
}  # fmt: skip
TABLES = (
    "job",
    "detail",
    "ready",
    "later",
    "waiting",
    "running",
    "ended",
    "event",
    "edge",
    "step",
    "output",
    "archive",
    "counter",
    "counter_sum",
    "api_key",
    "audit",
    "rate",
    "schedule",
    "fair_key",
    "fair_lane",
    "queue",
    "run_limit",
    "dedup",
    "release_due",
    "staged",
    "unpack_due",
)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apsw.Connection]:
    path = Path(tmp_path_factory.mktemp("plans")) / "jobs.db"
    connection.create(path)
    opened = connection.connect(path)
    connection.migrate(opened, path)
    yield opened
    opened.close()


def plan_of(database: apsw.Connection, statement: str) -> list[str]:
    return [str(row[3]) for row in database.execute("EXPLAIN QUERY PLAN " + statement, _Nulls())]


class _Nulls(dict[str, None]):
    """Bindings for any statement: everything is NULL."""

    def __missing__(self, key: str) -> None:
        return None


def statements() -> list[str]:
    return sorted(connection.STATEMENTS)


def test_every_statement_has_a_plan_here_and_every_plan_a_statement() -> None:
    assert statements() == sorted(PLANS)


@pytest.mark.parametrize("name", statements())
def test_a_statement_goes_through_its_index(database: apsw.Connection, name: str) -> None:
    plan = plan_of(database, load(name))

    for step in PLANS[name]:
        assert step in plan


@pytest.mark.parametrize("name", statements())
def test_no_statement_walks_the_table(database: apsw.Connection, name: str) -> None:
    walks = [step for step in plan_of(database, load(name)) if _walks(step)]

    assert walks == WALKS.get(name, [])


def _walks(step: str) -> bool:
    words = step.split()
    return words[0] == "SCAN" and words[1] in TABLES


@pytest.mark.parametrize("name", statements())
def test_no_statement_sorts_what_an_index_could_give_in_order(database: apsw.Connection, name: str) -> None:
    sorts = [step for step in plan_of(database, load(name)) if "TEMP B-TREE" in step]

    assert bool(sorts) == (name in SORTS)


@pytest.mark.parametrize("name", statements())
def test_a_statement_says_what_it_promises_and_which_index_serves_it(name: str) -> None:
    header = "\n".join(itertools.takewhile(lambda line: line.startswith("--"), load(name).splitlines()))

    assert header.startswith("-- ")
    for index in _indexes(PLANS[name]):
        assert index in header


def _indexes(plan: list[str]) -> set[str]:
    """Those that are named in a plan; a key of a table goes without saying."""
    found = {step.partition("INDEX ")[2].split()[0] for step in plan if "USING INDEX" in step or "COVERING" in step}
    return {index for index in found if not index.startswith("sqlite_autoindex")}


@pytest.mark.parametrize("order", ["created", "priority"])
@pytest.mark.parametrize("lead", FIND_PLANS)
def test_a_search_goes_through_the_index_of_its_leading_qualifier(
    database: apsw.Connection, lead: str, order: str
) -> None:
    plan = plan_of(database, read.positions(lead, order, (), more=False))

    assert [step.replace("COVERING ", "") for step in plan if step.split()[1] in ("j", "lead")] == FIND_PLANS[lead]


@pytest.mark.parametrize("lead", ["subject", "root"])
def test_a_search_by_order_of_arrival_sorts_nothing(database: apsw.Connection, lead: str) -> None:
    plan = plan_of(database, read.positions(lead, "created", ("status", "tag"), more=True))

    assert not [step for step in plan if "TEMP B-TREE" in step]


@pytest.mark.parametrize(
    ("lead", "place"),
    [
        ("later", "lead USING INTEGER PRIMARY KEY ("),
        ("waiting", "lead USING INTEGER PRIMARY KEY ("),
        ("ended_badly", "lead USING INDEX ended_badly (status=? AND "),
        ("completed", "lead USING INTEGER PRIMARY KEY ("),
        ("arrival", "j USING INTEGER PRIMARY KEY ("),
    ],
)
def test_a_search_that_nothing_narrows_looks_at_a_window(database: apsw.Connection, lead: str, place: str) -> None:
    for statement, span in (
        (read.window(lead, ("status", "queue")), "rowid>? AND rowid<?)"),
        (read.newest(lead), "rowid<?)"),
    ):
        plan = plan_of(database, statement)
        assert plan[0].replace("COVERING ", "") == f"SEARCH {place}{span}"
        assert not [each for each in plan if "TEMP B-TREE" in each]


def test_a_page_of_records_looks_each_up_by_its_position(database: apsw.Connection) -> None:
    assert plan_of(database, load("get_by_seq"))[1 : 2 + len(JOINED)] == [by_seq("j"), *JOINED]


def test_a_page_of_children_goes_through_their_index_in_its_order(database: apsw.Connection) -> None:
    plan = plan_of(database, settle.CHILDREN)

    assert plan[0] == "SEARCH j USING COVERING INDEX job_parent (parent_job_id=? AND job_id>?)"
    assert not [step for step in plan if "TEMP B-TREE" in step]
