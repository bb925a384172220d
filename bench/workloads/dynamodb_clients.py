"""Measures CPU per call of DynamoDB clients: our own client and signer, and the libraries that could replace them.

    scripts/bench dynamodb-clients [--json bench/results/dynamodb-clients.json]

Every client is a process of its own, so that none pays for another's imports. Within a round all clients take their
turn at each operation, in an order shuffled by --seed, against one DynamoDB Local. What counts is the CPU time of the
client's process, not the wall clock: the server's share is the same for all. A ratio is taken round by round, then the
median. The connection is plain HTTP; TLS would add the same to all.

The clients that replace a part of ours keep the rest of `Wire`: its lanes, the date of the reply, reading the answer.
aiobotocore and botocore stand alone, with retries and the validation of parameters switched off, which is their best.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import multiprocessing
import os
import platform
import random
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from importlib.metadata import version
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import msgspec
from backstay import Backstay
from backstay.clock import SystemClock
from backstay.engines.dynamodb import address, transport
from backstay.engines.dynamodb.store import DynamoStore
from backstay.engines.dynamodb.transport import REPLY_SECONDS, Lane, Reply, Wire
from pydantic import BaseModel
from tests.support.servers.dynamodb import DynamoDB

from bench.harness.payload import note, notes

Body = dict[str, Any]
REGION = "local"
KEYS = ("bench", "bench")
POOL = 16  # connections, as many as ours has
OURS = "ours"
PARTS = ("boto3", "botocore", "aiobotocore", "aiohttp", "httpx", "httpcore", "msgspec", "uvloop")


class Client(Protocol):
    async def call(self, operation: str, body: Body) -> Body: ...
    async def close(self) -> None: ...


# The clients


class Ours:
    def __init__(self, url: str) -> None:
        self._wire = self.make(address.parse(url))

    def make(self, parsed: address.Address) -> Wire:
        return Wire(parsed)

    async def call(self, operation: str, body: Body) -> Body:
        return await self._wire.call(operation, body, lane=Lane.USUAL, seconds=5)

    async def close(self) -> None:
        await self._wire.close()


class LibraryWire(Wire):
    """Our client with another signer and another transport."""

    def __init__(self, parsed: address.Address) -> None:
        super().__init__(parsed)
        self.url = f"{parsed.scheme}://{parsed.host_header}/"
        self.reusable = False  # used as a connection: the library has a pool of its own

    async def call(self, operation: str, body: Body, *, lane: Lane, seconds: float) -> Body:
        encoded = msgspec.json.encode(body)
        headers = self.sign(operation, encoded)
        async with self._connection(lane, seconds):
            asked_at = SystemClock().now()
            reply = await self.post(headers, encoded, min(REPLY_SECONDS, seconds))
        transport._refuse_damaged(reply)
        self._note_date(reply, asked_at)
        return self._read(operation, reply)

    def sign(self, operation: str, encoded: bytes) -> Mapping[str, str]:
        return botocore_signature(self.url, operation, encoded)

    async def post(self, headers: Mapping[str, str], encoded: bytes, seconds: float) -> Reply:
        raise NotImplementedError

    def _take(self) -> Any:
        return self

    def _drop(self, connection: Any) -> None: ...


def headers_of(operation: str) -> dict[str, str]:
    return {
        "content-type": "application/x-amz-json-1.0",
        "x-amz-target": f"DynamoDB_20120810.{operation}",
        "accept-encoding": "identity",
    }


_auth: Any = None


def botocore_signature(url: str, operation: str, encoded: bytes) -> dict[str, str]:
    global _auth
    from botocore.awsrequest import AWSRequest

    if _auth is None:
        from botocore.auth import SigV4Auth
        from botocore.credentials import Credentials

        _auth = SigV4Auth(Credentials(*KEYS), "dynamodb", REGION)
    request = AWSRequest("POST", url, headers=headers_of(operation), data=encoded)
    _auth.add_auth(request)
    return dict(request.headers.items())


class AiohttpWire(LibraryWire):
    def __init__(self, parsed: address.Address) -> None:
        super().__init__(parsed)
        import aiohttp
        import yarl

        self._url = yarl.URL(self.url)  # parsed once
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=POOL, keepalive_timeout=transport.IDLE_SECONDS),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=REPLY_SECONDS, connect=transport.CONNECT_SECONDS),
        )

    async def post(self, headers: Mapping[str, str], encoded: bytes, seconds: float) -> Reply:
        async with self._session.post(self._url, data=encoded, headers=headers, allow_redirects=False) as response:
            body = await response.read()
        return Reply(response.status, response.headers, body)

    async def close(self) -> None:
        await self._session.close()


class AiohttpWireOurSigner(AiohttpWire):
    def sign(self, operation: str, encoded: bytes) -> Mapping[str, str]:
        return our_signature(self, operation, encoded)


class HttpxWire(LibraryWire):
    def __init__(self, parsed: address.Address) -> None:
        super().__init__(parsed)
        import httpx

        self._client = httpx.AsyncClient(
            limits=httpx.Limits(max_connections=POOL, keepalive_expiry=transport.IDLE_SECONDS),
            timeout=httpx.Timeout(REPLY_SECONDS, connect=transport.CONNECT_SECONDS),
            trust_env=False,
        )

    async def post(self, headers: Mapping[str, str], encoded: bytes, seconds: float) -> Reply:
        response = await self._client.post(self.url, content=encoded, headers=headers)
        return Reply(response.status_code, response.headers, response.content)

    async def close(self) -> None:
        await self._client.aclose()


class HttpcoreWire(LibraryWire):
    """httpcore, the transport of httpx, without httpx."""

    def __init__(self, parsed: address.Address) -> None:
        super().__init__(parsed)
        import httpcore

        self._pool = httpcore.AsyncConnectionPool(max_connections=POOL, keepalive_expiry=transport.IDLE_SECONDS)
        self._url = httpcore.URL(self.url)
        seconds = dict.fromkeys(("read", "write", "pool"), REPLY_SECONDS)
        self._extensions = {"timeout": {"connect": transport.CONNECT_SECONDS, **seconds}}

    async def post(self, headers: Mapping[str, str], encoded: bytes, seconds: float) -> Reply:
        named = {"host": self.address.host_header, "content-length": str(len(encoded)), **headers}
        response = await self._pool.request(
            "POST", self._url, headers=named, content=encoded, extensions=self._extensions
        )
        found = {name.lower().decode(): value.decode() for name, value in response.headers}
        return Reply(response.status, found, response.content)

    async def close(self) -> None:
        await self._pool.aclose()


class OursBotocoreSigner(LibraryWire):
    """Our connection, signed by botocore."""

    async def call(self, operation: str, body: Body, *, lane: Lane, seconds: float) -> Body:
        encoded = msgspec.json.encode(body)
        signed = {"host": self.address.host_header, **self.sign(operation, encoded)}
        lines = [f"{name}: {value}" for name, value in signed.items()]
        head = "\r\n".join(["POST / HTTP/1.1", *lines, f"content-length: {len(encoded)}", "", ""]).encode()
        async with self._connection(lane, seconds) as opened:
            asked_at = SystemClock().now()
            reply = await opened.ask(head, encoded, min(REPLY_SECONDS, seconds))
        self._note_date(reply, asked_at)
        return self._read(operation, reply)

    _take = Wire._take
    _drop = Wire._drop


def our_signature(wire: Wire, operation: str, encoded: bytes) -> dict[str, str]:
    keys = wire._credentials.at_hand()
    assert keys is not None
    return wire._signer.headers(keys, datetime.now(UTC), wire.address.host_header, headers_of(operation), encoded)


class Aiobotocore:
    def __init__(self, url: str) -> None:
        from aiobotocore.config import AioConfig
        from aiobotocore.session import get_session

        config = AioConfig(max_pool_connections=POOL, **BOTOCORE_SETTINGS)
        self._made = get_session().create_client("dynamodb", config=config, **_of_botocore(url))
        self._client: Any = None

    async def call(self, operation: str, body: Body) -> Body:
        if self._client is None:
            self._client = await self._made.__aenter__()
        found: Body = await getattr(self._client, _method(operation))(**body)
        return found

    async def close(self) -> None:
        await self._made.__aexit__(None, None, None)


class BotocoreThreads:
    def __init__(self, url: str) -> None:
        import botocore.session
        from botocore.config import Config

        config = Config(max_pool_connections=POOL, **BOTOCORE_SETTINGS)
        self._client = botocore.session.Session().create_client("dynamodb", config=config, **_of_botocore(url))
        self._threads = ThreadPoolExecutor(POOL)

    async def call(self, operation: str, body: Body) -> Body:
        method = getattr(self._client, _method(operation))
        found: Body = await asyncio.get_running_loop().run_in_executor(self._threads, lambda: method(**body))
        return found

    async def close(self) -> None:
        self._threads.shutdown()


BOTOCORE_SETTINGS = {"parameter_validation": False, "retries": {"mode": "standard", "total_max_attempts": 1}}


def _of_botocore(url: str) -> dict[str, str]:
    parsed = address.parse(url)
    access, secret = KEYS
    return {
        "region_name": REGION,
        "endpoint_url": f"{parsed.scheme}://{parsed.host_header}",
        "aws_access_key_id": access,
        "aws_secret_access_key": secret,
    }


def _method(operation: str) -> str:
    from botocore import xform_name

    found: str = xform_name(operation)
    return found


def _wired(kind: type[Wire]) -> Callable[[str], Client]:
    class Wired(Ours):
        def make(self, parsed: address.Address) -> Wire:
            return kind(parsed)

    return Wired


CLIENTS: dict[str, Callable[[str], Client]] = {
    OURS: Ours,
    "ours, botocore's signer": _wired(OursBotocoreSigner),
    "aiohttp, our signer": _wired(AiohttpWireOurSigner),
    "aiohttp, botocore's signer": _wired(AiohttpWire),
    "httpx, botocore's signer": _wired(HttpxWire),
    "httpcore, botocore's signer": _wired(HttpcoreWire),
    "aiobotocore": Aiobotocore,
    "botocore in threads": BotocoreThreads,
}
LIBRARIES = (
    "aiohttp, botocore's signer",
    "httpx, botocore's signer",
    "httpcore, botocore's signer",
    "aiobotocore",
)  # required by the rule


# One client's process


def serve(name: str, url: str, loop: str, pipe: Pipe) -> None:
    os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"] = KEYS
    if loop == "uvloop":
        import uvloop

        uvloop.run(_serve(name, url, pipe))
    else:
        asyncio.run(_serve(name, url, pipe))


async def _serve(name: str, url: str, pipe: Pipe) -> None:
    client = CLIENTS[name](url)
    while (asked := await asyncio.to_thread(pipe.recv)) is not None:  # the loop sees connections that the server closes
        operation, bodies, calls = asked
        pipe.send(await _sample(client, operation, bodies, calls))
    await client.close()


async def _sample(client: Client, operation: str, bodies: list[Body], calls: int) -> tuple[float, float]:
    """Return seconds of CPU and wall-clock time per call."""
    each = calls // len(bodies)
    await _all(_calls(client, operation, body, 3) for body in bodies)
    gc.collect()
    began, cpu = time.perf_counter(), time.process_time()
    await _all(_calls(client, operation, body, each) for body in bodies)
    cpu, took = time.process_time() - cpu, time.perf_counter() - began
    return cpu / (each * len(bodies)), took / (each * len(bodies))


async def _all(tasks: Any) -> None:
    await asyncio.gather(*tasks)


async def _calls(client: Client, operation: str, body: Body, calls: int) -> None:
    for _ in range(calls):
        if operation == "TransactWriteItems":
            body = {**body, "ClientRequestToken": str(uuid.uuid4())}
        found = await client.call(operation, body)
        if operation == "Query":
            assert len(found["Items"]) == 10
        elif operation in ("GetItem", "UpdateItem"):
            assert found["Item" if operation == "GetItem" else "Attributes"]["job_id"]


# The requests


class Note(BaseModel):
    user_id: int
    text: str


async def requests(url: str, at_once: int) -> dict[str, list[Body]]:
    """Return request bodies on real job items, one per task, so that none waits for another's item."""
    app = Backstay(url)

    @app.job("note")
    async def handle(payload: Note) -> None: ...

    await app.migrate()
    async with app:
        first = await app.submit("note", note(0), tags=["a", "b"], subject="user-1")
        await app.submit_many([("note", each) for each in notes(40)])
        store = app.store
        assert isinstance(store, DynamoStore)
        wire = Wire(address.parse(url))
        jobs = wire.address.jobs
        got = await wire.call(
            "GetItem", {"TableName": jobs, "Key": {"job_id": {"S": first.job_id}}}, lane=Lane.USUAL, seconds=5
        )
        await wire.close()
    item = got["Item"]
    assert not any("B" in value for value in item.values())  # botocore would encode it again
    copies = [
        [{**item, "job_id": {"S": str(uuid.uuid4())}, "status": {"S": f"bench-{task}"}} for _ in range(4)]
        for task in range(at_once)
    ]
    return {
        "GetItem": [{"TableName": jobs, "Key": {"job_id": item["job_id"]}, "ConsistentRead": True}] * at_once,
        "PutItem": [{"TableName": jobs, "Item": each[0]} for each in copies],
        "UpdateItem": [
            {
                "TableName": jobs,
                "Key": {"job_id": each[0]["job_id"]},
                "UpdateExpression": "SET #lease = :lease, #worker = :worker",
                "ConditionExpression": "#version = :version",
                "ExpressionAttributeNames": {"#lease": "lease", "#worker": "worker_id", "#version": "version"},
                "ExpressionAttributeValues": {
                    ":lease": {"N": "1700000000000000"},
                    ":worker": {"S": "host:4711:0"},
                    ":version": item["version"],
                },
                "ReturnValues": "ALL_NEW",
                "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
            }
            for each in copies
        ],
        "Query": [
            {
                "TableName": jobs,
                "IndexName": "StatusCreatedIndex",
                "KeyConditionExpression": "#hash = :hash",
                "ExpressionAttributeNames": {"#hash": "status"},
                "ExpressionAttributeValues": {":hash": item["status"]},
                "Limit": 10,
            }
        ]
        * at_once,
        "TransactWriteItems": [
            {
                "TransactItems": [
                    {
                        "Put": {
                            "TableName": jobs,
                            "Item": copy,
                            "ConditionExpression": "attribute_not_exists(#id) OR #version = :version",
                            "ExpressionAttributeNames": {"#id": "job_id", "#version": "version"},
                            "ExpressionAttributeValues": {":version": item["version"]},
                            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
                        }
                    }
                    for copy in each[1:]
                ]
            }
            for each in copies
        ],
    }


# The run

Rounds = list[dict[str, dict[str, tuple[float, float]]]]  # by operation and client: seconds of CPU, of the wall clock


def measure(url: str, bodies: dict[str, list[Body]], given: argparse.Namespace) -> Rounds:
    context = multiprocessing.get_context("spawn")
    pipes: dict[str, Pipe] = {}
    processes = []
    for name in CLIENTS:
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(name, url, given.loop, theirs), daemon=True)
        process.start()
        theirs.close()  # a client that dies is an error, not a hang
        pipes[name] = ours
        processes.append(process)
    shuffled = random.Random(given.seed)
    rounds: Rounds = []
    for number in range(given.rounds + 1):
        taken: dict[str, dict[str, tuple[float, float]]] = {}
        for operation in bodies:
            taken[operation] = {}
            for name in shuffled.sample(list(CLIENTS), len(CLIENTS)):
                pipes[name].send((operation, bodies[operation], given.calls if number else given.calls // 4))
                taken[operation][name] = pipes[name].recv()
        if number:  # the first warms up
            rounds.append(taken)
            print(f"round {number} of {given.rounds}", file=sys.stderr, flush=True)
    for pipe in pipes.values():
        pipe.send(None)
    for process in processes:
        process.join(20)
    return rounds


def medians(rounds: Rounds) -> dict[str, dict[str, dict[str, float]]]:
    """Return, by operation and client, microseconds of CPU per call, and the ratio to ours."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for operation in rounds[0]:
        found[operation] = {}
        for name in CLIENTS:
            cpu = [each[operation][name][0] for each in rounds]
            ratios = [each[operation][name][0] / each[operation][OURS][0] for each in rounds]
            found[operation][name] = {"cpu_us": round(median(cpu) * 1e6, 1), "times_ours": round(median(ratios), 2)}
    found["all"] = {}
    for name in CLIENTS:
        sums = [sum(taken[name][0] for taken in each.values()) for each in rounds]
        ours = [sum(taken[OURS][0] for taken in each.values()) for each in rounds]
        found["all"][name] = {
            "cpu_us": round(median(sums) * 1e6 / len(rounds[0]), 1),
            "times_ours": round(median(a / b for a, b in zip(sums, ours, strict=True)), 2),
        }
    return found


def report(found: dict[str, dict[str, dict[str, float]]]) -> None:
    print(f"{'CPU µs per call':28}" + "".join(f"{operation:>22}" for operation in found))
    for name in CLIENTS:
        cells = (f"{each[name]['cpu_us']:,.0f} ({each[name]['times_ours']:.2f}×)" for each in found.values())
        print(f"{name:28}" + "".join(f"{cell:>22}" for cell in cells))
    best = min(LIBRARIES, key=lambda name: found["all"][name]["times_ours"])
    print(f"\nthe better library is {best}: {found['all'][best]['times_ours']:.2f} times the CPU of ours")


def main() -> int:
    parser = argparse.ArgumentParser(description="CPU per call of ways to reach DynamoDB.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=400, help="of a sample")
    parser.add_argument("--at-once", type=int, default=8, help="tasks that call, one after another each")
    parser.add_argument("--loop", choices=("asyncio", "uvloop"), default="asyncio")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="add the outcome to this file, under the name of the loop")
    given = parser.parse_args()
    commit, machine = _commit(), _machine()  # read when the run begins: there may be a commit in the meantime
    with DynamoDB() as server:
        url = server.url("bench")
        bodies = asyncio.run(requests(url, given.at_once))
        rounds = measure(url, bodies, given)
    found = medians(rounds)
    report(found)
    if given.json is not None:
        known = json.loads(given.json.read_text(encoding="utf-8")) if given.json.exists() else {}
        known[given.loop] = {
            "commit": commit,
            "command": " ".join(["scripts/bench", "dynamodb-clients", *sys.argv[1:]]),
            "machine": machine,
            "median": found,
            "rounds": [
                {
                    operation: {name: [round(value * 1e6, 1) for value in each] for name, each in taken.items()}
                    for operation, taken in one.items()
                }
                for one in rounds
            ],
            "units": "microseconds per call; in rounds: of CPU, of the wall clock",
        }
        given.json.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    return 0


def _commit() -> str:
    return subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()


def _machine() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PARTS},
        "cpus": os.cpu_count(),
        "load_average": [round(each, 1) for each in os.getloadavg()],
    }


if __name__ == "__main__":
    sys.exit(main())
