"""/v1/rerank and /v2/rerank, as the clients of Cohere and Jina send requests and read replies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import weft
from tests.serve.running import Served
from weft.tasks.embed import rank

QUERY = "an old loom"
TEXTS = ["A new mill.", "The loom was old.", "Nobody came, for it was late.", "an old loom"]


@pytest.fixture(scope="module")
def expected(models: Path) -> list[tuple[int, float]]:
    """The numbers of the texts in their order, with their scores."""
    (ranked,) = rank(weft.load(models / "bert").opened, QUERY, TEXTS)
    return [(hit.number, hit.score) for hit in ranked.hits]


def check_order(results: list[dict[str, Any]], expected: list[tuple[int, float]]) -> None:
    assert [each["index"] for each in results] == [number for number, _ in expected]
    scores = [score for _, score in expected]
    assert [each["relevance_score"] for each in results] == pytest.approx(scores, abs=1e-5)


def test_cohere_version_1(server: Served, expected: list[tuple[int, float]]) -> None:
    """Documents as objects too, and returned; the fields of ApiMeta are optional there."""
    documents = [*TEXTS[:2], *({"text": text} for text in TEXTS[2:])]
    body = {"model": "bert", "query": QUERY, "documents": documents, "top_n": 3, "rank_fields": ["text"]}
    reply = server.post("/v1/rerank", {**body, "return_documents": True, "max_chunks_per_doc": 10})
    values = reply.json()
    check_order(values["results"], expected[:3])
    assert [each["document"] for each in values["results"]] == [{"text": TEXTS[number]} for number, _ in expected[:3]]
    assert values["id"] and values["meta"]["billed_units"]["search_units"] == 1
    assert "document" not in server.post("/v1/rerank", {**body, "return_documents": False}).json()["results"][0]


def test_cohere_version_2(server: Served, expected: list[tuple[int, float]]) -> None:
    body = {"model": "bert", "query": QUERY, "documents": TEXTS, "top_n": 10, "max_tokens_per_doc": 4096, "priority": 0}
    values = server.post("/v2/rerank", body).json()
    check_order(values["results"], expected)
    assert all(set(each) == {"index", "relevance_score"} for each in values["results"])


def test_jina(server: Served, expected: list[tuple[int, float]]) -> None:
    """The texts are returned, unless they are not wanted."""
    body = {"model": "bert", "query": QUERY, "documents": TEXTS, "top_n": 2}
    values = server.post("/v1/rerank", body, {"Accept": "application/json", "Authorization": "Bearer none"}).json()
    assert values["model"] == "bert" and values["object"] == "list" and values["usage"]["total_tokens"] > 0
    check_order(values["results"], expected[:2])
    assert values["results"][0]["document"]["text"] == TEXTS[expected[0][0]]


def test_every_document_is_ranked_by_default(server: Served) -> None:
    documents = [f"a weaver and {number} looms" for number in range(40)]
    values = server.post("/v1/rerank", {"model": "bert", "query": QUERY, "documents": documents}).json()
    assert sorted(each["index"] for each in values["results"]) == list(range(40))


@pytest.mark.parametrize(
    ("field", "more"),
    [
        ("top_n", {"top_n": 0}),
        ("documents", {"documents": []}),
        ("documents", {"documents": "The loom was old."}),
        ("documents[1]", {"documents": ["a", {"text": "b", "title": "c"}]}),
        ("documents[0].text", {"documents": [{"text": 3}]}),
        ("rank_fields", {"rank_fields": ["title"]}),
        ("max_tokens_per_doc", {"max_tokens_per_doc": 100}),
        ("priority", {"priority": 3}),
        ("truncation", {"truncation": True}),
        ("documents", {"documents": ["a"] * 2049}),
        ("documents[1]", {"model": "gpt", "documents": ["a", ""]}),
        ("query", {"model": "gpt", "query": ""}),
    ],
)
def test_mistakes_name_their_field(server: Served, field: str, more: dict[str, Any]) -> None:
    reply = server.post("/v1/rerank", {"model": "bert", "query": QUERY, "documents": TEXTS, **more})
    assert reply.status == 422 and reply.error["param"] == field and field in reply.error["message"]
