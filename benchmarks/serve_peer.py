"""A plain server to compare with: FastAPI and a pipeline of transformers in threads, as its tutorials write one.

    SERVE_PEER_MODEL=FOLDER uvicorn --app-dir benchmarks serve_peer:app

SERVE_PEER_THREADS: requests that are answered at a time; FastAPI's own number unless it is given.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio.to_thread
from fastapi import FastAPI
from pydantic import BaseModel
from transformers import pipeline


class Texts(BaseModel):
    """What is to be labeled."""

    input: list[str]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    if threads := os.environ.get("SERVE_PEER_THREADS"):
        anyio.to_thread.current_default_thread_limiter().total_tokens = int(threads)
    yield


app = FastAPI(lifespan=lifespan)
classifier: Any = pipeline("text-classification", model=os.environ["SERVE_PEER_MODEL"], device="cpu", top_k=None)


@app.get("/ready")
def ready() -> dict[str, bool]:
    return {"ready": True}


@app.post("/v1/classify")
def classify(body: Texts) -> dict[str, Any]:
    """The probability of every label for each text."""
    return {"answers": classifier(body.input, truncation=True)}
