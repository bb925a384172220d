"""The engines, by URL."""

from __future__ import annotations

from holdfast.errors import ConfigurationError
from holdfast.files import Files, LocalFiles
from holdfast.store.port import Store


def open_url(url: str) -> Store:
    """The store behind a URL; not yet opened."""
    scheme = url.partition(":")[0]
    match scheme:
        case "sqlite":
            from holdfast.stores.sqlite import SQLiteStore

            return SQLiteStore(url)
        case "postgresql" | "postgres":
            try:
                from holdfast.stores.postgres import PostgresStore
            except ModuleNotFoundError as error:
                raise ConfigurationError(
                    f'{error.name} is not installed: pip install "holdfast[postgres]" for {scheme}://…'
                ) from None
            return PostgresStore(url)
        case "dynamodb":
            from holdfast.stores.dynamodb import DynamoStore

            return DynamoStore(url)
        case _:
            if "://" not in url:
                raise ConfigurationError(f"{url!r} is no URL: write sqlite:///{url}")
            if scheme.partition("+")[0] in ("postgresql", "postgres"):
                raise ConfigurationError(
                    f"{scheme}://… names a driver, which Holdfast brings itself: write postgresql://…"
                )
            raise ConfigurationError(
                f"{scheme}://… is not an engine of this release: use sqlite:///jobs.db, postgresql://… or dynamodb://…"
            )


def open_files(url: str, store: Store, artifacts: str | None) -> Files:
    """Where the files of its jobs are: where `artifacts` says, else beside the store, else in it."""
    beside = store.files_root
    if artifacts is not None and artifacts[:3].lower() == "s3:":
        from holdfast.stores.s3 import S3Files

        return S3Files(artifacts)
    if artifacts is not None:
        return LocalFiles.at(artifacts, several_hosts=beside is None)
    if beside is not None:
        return LocalFiles(beside)
    if url.startswith("dynamodb:"):
        from holdfast.stores.dynamodb import address, filing

        return filing.files_of(address.parse(url))
    from holdfast.stores.postgres.filing import files_of

    return files_of(url)
