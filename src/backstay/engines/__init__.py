"""The storage engines: opens a store, and the place for its files, by URL."""

from __future__ import annotations

from backstay.core.checks import how_to_install
from backstay.core.port import Store
from backstay.errors import ConfigurationError
from backstay.files.local import Files, LocalFiles


def open_url(url: str) -> Store:
    """Return the store for a URL, not yet opened."""
    scheme = url.partition(":")[0]
    match scheme:
        case "sqlite":
            from backstay.engines.sqlite.store import SQLiteStore

            return SQLiteStore(url)
        case "postgresql" | "postgres":
            try:
                from backstay.engines.postgres.store import PostgresStore
            except ModuleNotFoundError as error:
                raise ConfigurationError(
                    f"{error.name} is not installed, which {scheme}://… needs: {how_to_install('postgres')}"
                ) from None
            return PostgresStore(url)
        case "dynamodb":
            from backstay.engines.dynamodb.store import DynamoStore

            return DynamoStore(url)
        case _:
            if "://" not in url:
                raise ConfigurationError(f"{url!r} is not a URL: write sqlite:///{url}")
            if scheme.partition("+")[0] in ("postgresql", "postgres"):
                raise ConfigurationError(
                    f"{scheme}://… names a driver, which Backstay chooses itself: write postgresql://…"
                )
            raise ConfigurationError(
                f"{scheme}://… is not a supported engine: use sqlite:///jobs.db, postgresql://… or dynamodb://…"
            )


def open_files(url: str, store: Store, artifacts: str | None) -> Files:
    """Return the files of a store: at the location `artifacts`, else next to the store, else inside it."""
    beside = store.files_root
    if artifacts is not None and artifacts[:3].lower() == "s3:":
        try:
            from backstay.files.s3 import S3Files
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                f"{error.name} is not installed, which artifacts=s3://… needs: {how_to_install('s3')}"
            ) from None
        return S3Files(artifacts)
    if artifacts is not None:
        return LocalFiles.at(artifacts, several_hosts=beside is None)
    if beside is not None:
        return LocalFiles(beside)
    if url.startswith("dynamodb:"):
        from backstay.engines.dynamodb import address, files

        return files.files_of(address.parse(url))
    from backstay.engines.postgres.files import files_of

    return files_of(url)
