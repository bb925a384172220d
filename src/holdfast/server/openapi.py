"""The OpenAPI document: every status that can be, one schema per registered job type, examples."""

from __future__ import annotations

from fastapi import FastAPI

from holdfast.app import Holdfast


def install(api: FastAPI, app: Holdfast) -> None:
    """Marks each route with its scope; a route without one is refused."""
