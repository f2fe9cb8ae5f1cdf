"""schemathesis over /openapi.json: replies are as documented, whatever is sent, and valid requests are answered."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.core.failures import Failure, FailureGroup

from tests.serve.running import MODELS, Served, save_models

POSITIVE, NEGATIVE = GenerationMode.POSITIVE, GenerationMode.NEGATIVE
DEADLINE = "Weft-Deadline"
# What a request that fits its schema may still be refused for: fields that contradict each other, too many tokens.
REFUSALS = {413, 422}
LONGEST = 32  # tokens to generate, and words to suggest, so that a case takes no second
WRITING = tuple(f"/v1/{name}" for name in ("completions", "complete", "translate", "summarize", "rewrite"))
LEAST_SHARE = 0.4  # of valid requests, that each route must answer


class Fuzzer:
    """Sends generated requests, and keeps how they were answered."""

    def __init__(self, url: str, number: int = 1) -> None:
        config = schemathesis.Config()
        config.projects.default.generation.allow_x00 = False  # no text has it: it is refused with 400
        self.schema = schemathesis.openapi.from_url(f"{url}/openapi.json", config=config)
        self.operations = {each.ok().label: each.ok() for each in self.schema.get_all_operations()}
        self.number = number
        self.statuses: dict[tuple[str, GenerationMode], Counter[int]] = defaultdict(Counter)
        self.failures: list[str] = []

    def run(self, label: str, mode: GenerationMode, count: int) -> None:
        """So many requests to one operation, that fit its schema or do not."""

        @seed(self.number)
        @settings(max_examples=count, database=None, deadline=None, phases=[Phase.generate],
                  suppress_health_check=list(HealthCheck))  # fmt: skip
        @given(case=self.operations[label].as_strategy(generation_mode=mode))
        def send(case: Case) -> None:
            self.send(label, mode, case)

        try:
            send()
        except Unsatisfiable:  # there is no wrong way to ask for /health
            assert mode is NEGATIVE and label.startswith("GET ")

    def send(self, label: str, mode: GenerationMode, case: Case) -> None:
        if mode is POSITIVE:
            shorten(case)
        hurried = mode is NEGATIVE and DEADLINE in case.headers
        response = case.call()
        self.statuses[label, mode][response.status_code] += 1
        allowed = {*REFUSALS, 504} if hurried else REFUSALS  # 504 is the right answer to a deadline that has passed
        try:
            case.validate_response(response)
        except (FailureGroup, Failure) as failures:
            for failure in getattr(failures, "exceptions", [failures]):
                kind = type(failure).__name__
                if kind == "RejectedPositiveData" and response.status_code in allowed:
                    continue
                if kind == "AcceptedNegativeData" and response.status_code == 413:
                    continue  # refused all the same: too much, beside what is wrong
                if kind == "ServerError" and hurried and response.status_code == 504:
                    continue
                self.failures.append(
                    f"{label} {mode.value}: {kind}: {case.body!r:.300} {case.headers} {response.text:.300}"
                )

    def share(self, label: str) -> float:
        """Of the requests that fit the schema, the share that were answered."""
        counts = self.statuses[label, POSITIVE]
        return counts[200] / counts.total()

    @property
    def total(self) -> int:
        return sum(counts.total() for counts in self.statuses.values())


def shorten(case: Case) -> None:
    """Bound the work of a valid request, and give it time."""
    case.headers.pop(DEADLINE, None)
    body: Any = case.body
    if not isinstance(body, dict):
        return
    if case.operation.path in WRITING and (body.get("max_tokens") is None or body["max_tokens"] > LONGEST):
        body["max_tokens"] = LONGEST
    if "top" in body and case.operation.path == "/v1/suggest":
        body["top"] = min(body["top"], LONGEST)


def fuzzed(url: str, positive: int, negative: int, unanswered: tuple[str, ...] = ()) -> Fuzzer:
    """So many requests to every operation; to those that no model answers only wrong ones."""
    fuzzer = Fuzzer(url)
    for label in fuzzer.operations:
        if label not in unanswered:
            fuzzer.run(label, POSITIVE, positive)
        fuzzer.run(label, NEGATIVE, negative)
    assert not fuzzer.failures, "\n".join(fuzzer.failures[:20])
    shares = {label: fuzzer.share(label) for label, mode in fuzzer.statuses if mode is POSITIVE}
    assert {label: share for label, share in shares.items() if share < LEAST_SHARE} == {}
    for label, mode in fuzzer.statuses:
        if mode is NEGATIVE:
            assert not fuzzer.statuses[label, mode][200], label
    return fuzzer


def test_replies_are_as_documented(server: Served) -> None:
    """200 requests; what no model of this server does is tested by the slow test."""
    nobody = tuple(f"POST /v1/{name}" for name in ("summarize", "rewrite", "forecast"))
    assert fuzzed(server.url, 9, 4, nobody).total >= 200


@pytest.mark.slow
def test_many_replies_are_as_documented(tmp_path: Path) -> None:
    """5,000 requests to a server with a model for every route."""
    names = (*MODELS, "pairs", "writer", "sales")
    save_models(tmp_path, names)
    with Served(*(str(tmp_path / name) for name in names), "--no-access-log") as served:
        fuzzer = fuzzed(served.url, 200, 110)
        print({(label, mode.value): dict(counts) for (label, mode), counts in fuzzer.statuses.items()})
        assert fuzzer.total >= 5000
        assert served.end() == 0
