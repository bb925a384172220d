"""The parent side of a child's questions: each is put to the channel of its job."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, cast

import msgspec

from holdfast import codec
from holdfast.effects import packed, unpacked
from holdfast.errors import HoldfastError
from holdfast.store.tables import ResultTable, RowPage, RowQuery
from holdfast.submission import SubmitOptions
from holdfast.trees import Awaits
from holdfast.worker.channels import LoopChannel


async def served(message: list[Any], channel: LoopChannel) -> dict[str, Any] | None:
    """Do what a job in a child asks for; the answer, if it waits for one."""
    match message:
        case ["progress", fraction, stage]:
            channel.progress(fraction, stage)
        case ["metric", name, value]:
            channel.metric(name, value)
        case ["effects", statements]:
            channel.effects([(statement, tuple(map(unpacked, values))) for statement, values in statements])
        case ["refuse_rows", reason]:
            channel.refuse_rows(reason)
        case question:
            return await _answer(_asked(question, channel))
    return None


async def _asked(question: list[Any], channel: LoopChannel) -> Any:
    match question:
        case ["artifact", name, content]:
            return await channel.artifact(name, base64.b64decode(content))
        case ["artifact_file", name, path]:
            return await channel.artifact(name, Path(path))
        case ["step", name]:
            return await channel.step(name)
        case ["record_step", name, answer]:
            return await channel.record_step(name, answer)
        case ["submit", name, payload, key, at_once, options]:
            plain = cast(SubmitOptions, {option: unpacked(value) for option, value in options.items()})
            return await channel.submit(name, codec.decode(payload), key, at_once, plain)
        case ["loaded_children"]:
            return channel.loaded_children()
        case ["large_result", job_id]:
            return await _large_result(channel, job_id)
        case ["children", after, named]:
            return await channel.children(after, named)
        case ["ended", awaits]:
            return await channel.ended(Awaits.parse(awaits))
        case ["upstream"]:
            return await channel.upstream()
        case _:
            return await _asked_of_tables(question, channel)


async def _large_result(channel: LoopChannel, job_id: str) -> str | None:
    record = await channel.record(job_id)
    return None if record is None else await asyncio.to_thread(channel.large_result, record)


async def _asked_of_tables(question: list[Any], channel: LoopChannel) -> Any:
    match question:
        case ["put_rows", table, rows]:
            values = cast(Any, [tuple(map(unpacked, row)) for row in rows])
            return await channel.put_rows(_table(table), values)
        case ["rows", table, ask, key, after]:
            asked = RowQuery(**(ask | {"key": unpacked(key), "after": unpacked(after)}))
            return _packed_page(await channel.rows(_table(table), asked))
        case ["rows_by_subject", table, subject, after, limit]:
            return _packed_page(await channel.rows_by_subject(_table(table), subject, after, limit))
        case ["latest", subject, job_type]:
            return await channel.latest(subject, job_type)
        case _:
            raise HoldfastError(f"a question that makes no sense: {question!r:.200}")


def _table(plain: Any) -> ResultTable:
    return msgspec.convert(plain, ResultTable)


def _packed_page(page: RowPage) -> dict[str, Any]:
    items = [{**msgspec.to_builtins(row), "values": [packed(value) for value in row.values]} for row in page.items]
    return {"items": items, "attempt": page.attempt, "next": packed(page.next)}


async def _answer(call: Awaitable[Any]) -> dict[str, Any]:
    try:
        return {"value": await call}
    except (HoldfastError, OSError) as error:
        return {"error": str(error), "type": type(error).__name__}
