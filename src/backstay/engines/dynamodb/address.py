"""Parses the URL dynamodb://prefix?region=… into an address and its options."""

from __future__ import annotations

import os
import re
from urllib.parse import parse_qs, urlsplit

import msgspec

from backstay.engines.dynamodb.attributes import SUBJECT, Form, check_subject
from backstay.engines.dynamodb.schema import Table
from backstay.errors import ConfigurationError
from backstay.files.aws import region_of

SHARDS_MAX = 64
_PREFIX = re.compile(r"[A-Za-z0-9_.-]{3,40}")
_TABLE = re.compile(r"[A-Za-z0-9_.-]{3,255}")
_REGION = re.compile(r"[a-z]{2}(-[a-z0-9]+)+")
_NAMES = frozenset(
    {
        "region",
        "endpoint",
        "table",
        "subject",
        "status",
        "projection",
        "shards",
        "billing",
        "profile",
        "wake",
        "wake_ceiling",
        "pool",
        "sweep_hours",
        "meter",
    }
)
_LOCAL = ("127.0.0.1", "localhost", "::1")


class Address(msgspec.Struct, frozen=True):
    prefix: str
    region: str
    scheme: str
    host: str
    port: int
    jobs: str  # the name of the jobs' table
    shards: int = 1
    subject: str | None = None  # the attribute with a job's subject; None: as the table has it
    capitals: bool | None = None  # whether states are stored in capitals; None: as the table has it
    whole: bool = False  # whether the indexes that other programs query show all attributes
    provisioned: bool = False
    profile: str | None = None
    wake: bool = True
    wake_ceiling: float = 30.0
    pool: int = 16
    sweep_hours: float = 24.0
    meter: bool = False
    named: bool = False  # a custom endpoint, not Amazon's

    @property
    def shown(self) -> str:
        """Return the URL that identifies this queue."""
        table = "" if self.jobs == _jobs_of(self.prefix) else f"&table={self.jobs}"
        endpoint = f"&endpoint={self.scheme}://{self.host_header}" if self.named else ""
        return f"dynamodb://{self.prefix}?region={self.region}{table}{endpoint}"

    @property
    def tables(self) -> dict[Table, str]:
        return {Table.JOBS: self.jobs, Table.RECORDS: _records_of(self.prefix)}

    @property
    def form(self) -> Form:
        return Form(self.shards, self.subject or SUBJECT, bool(self.capitals))

    @property
    def on_this_machine(self) -> bool:
        return self.host in _LOCAL

    @property
    def host_header(self) -> str:
        usual = {"https": 443, "http": 80}[self.scheme]
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == usual else f"{host}:{self.port}"


def parse(url: str) -> Address:
    parts = urlsplit(url)
    prefix = parts.netloc
    if not _PREFIX.fullmatch(prefix) or parts.path not in ("", "/") or parts.fragment:
        found = url.partition("://")[2].partition("?")[0]
        raise ConfigurationError(
            f"{found!r:.60} is not a prefix: a DynamoDB URL is dynamodb://prefix?region=…, its prefix 3 to 40 letters,"
            " digits, dots, dashes or underscores, with which the tables' names begin"
        )
    options = _options(parts.query)
    profile = options.get("profile")
    scheme, host, port, named = _endpoint(options)
    region = options.get("region") or region_of(profile) or ("local" if named else None)
    if region is None:
        raise ConfigurationError("no AWS region: add ?region=eu-north-1 to the URL, or set AWS_REGION")
    if not named and not _REGION.fullmatch(region):
        raise ConfigurationError(f"region={region!r:.60} is not an AWS region")
    if host is None:
        host = f"dynamodb.{region}.amazonaws.com{'.cn' if region.startswith('cn-') else ''}"
    _refuse_proxy(scheme, host)
    return Address(
        prefix=prefix,
        region=region,
        scheme=scheme,
        host=host,
        port=port,
        jobs=_jobs(options, prefix),
        shards=int(_number(options, "shards", 1, 1, SHARDS_MAX)),
        subject=check_subject(options["subject"]) if "subject" in options else None,
        capitals=_choice(options, "status", ("lower", "upper")) == "upper" if "status" in options else None,
        whole=_choice(options, "projection", ("slim", "all")) == "all",
        provisioned=_choice(options, "billing", ("on-demand", "provisioned")) == "provisioned",
        profile=profile,
        wake=_choice(options, "wake", ("true", "false")) == "true",
        wake_ceiling=_number(options, "wake_ceiling", 30, 0.2, 600),
        pool=int(_number(options, "pool", 16, 8, 256)),
        sweep_hours=_number(options, "sweep_hours", 24, 1, 24 * 30),
        meter=_choice(options, "meter", ("false", "true")) == "true",
        named=named,
    )


def _jobs_of(prefix: str) -> str:
    return f"{prefix}_jobs"


def _records_of(prefix: str) -> str:
    return f"{prefix}_records"


def _jobs(options: dict[str, str], prefix: str) -> str:
    name = options.get("table", _jobs_of(prefix))
    if not _TABLE.fullmatch(name):
        raise ConfigurationError(
            f"table={name!r:.60} is not a table name: use 3 to 255 letters, digits, dots, dashes or underscores"
        )
    if name == _records_of(prefix):
        raise ConfigurationError(f"table={name}: that name is used for the other table; choose another for the jobs")
    return name


def _options(query: str) -> dict[str, str]:
    given = parse_qs(query, keep_blank_values=True)
    for name, values in given.items():
        if name not in _NAMES:
            raise ConfigurationError(f"a DynamoDB URL has no option {name!r:.60}: it has {', '.join(sorted(_NAMES))}")
        if len(values) > 1:
            raise ConfigurationError(f"{name}= appears twice in the URL")
        if not values[0]:
            raise ConfigurationError(f"{name}= is empty: give it a value, or leave it out")
    return {name: values[0] for name, values in given.items()}


def _endpoint(options: dict[str, str]) -> tuple[str, str | None, int, bool]:
    """Return scheme, host, port, and whether the endpoint is custom: only AWS's own hosts need an AWS region."""
    named = options.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL_DYNAMODB") or os.environ.get("AWS_ENDPOINT_URL")
    if not named:
        return "https", None, 443, False
    parts = urlsplit(named)
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme not in ("http", "https") or not parts.hostname or port == -1 or parts.path not in ("", "/"):
        raise ConfigurationError(f"endpoint={named!r:.100} is not an address: write endpoint=http://127.0.0.1:8000")
    return parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80), True


def _refuse_proxy(scheme: str, host: str) -> None:
    name = f"{scheme}_proxy"
    if host in _LOCAL or not (os.environ.get(name) or os.environ.get(name.upper())):
        return
    exempt = os.environ.get("NO_PROXY") or os.environ.get("no_proxy") or ""
    if any(each == "*" or host == each or host.endswith(f".{each.lstrip('.')}") for each in _listed(exempt)):
        return
    raise ConfigurationError(
        f"{name.upper()} is set, but proxies are not supported for DynamoDB: list {host} in NO_PROXY,"
        " or use a VPC endpoint"
    )


def _listed(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def _choice(options: dict[str, str], name: str, choices: tuple[str, ...]) -> str:
    value = options.get(name, choices[0])
    if value not in choices:
        raise ConfigurationError(f"{name}={value!r:.60}: choose {' or '.join(choices)}")
    return value


def _number(options: dict[str, str], name: str, usual: float, least: float, most: float) -> float:
    try:
        value = float(options.get(name, usual))
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise ConfigurationError(f"{name}={options[name]!r:.60}: write a number from {least} to {most}")
    return value
