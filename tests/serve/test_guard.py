"""Who may ask, over HTTP: names, origins, keys, shapes of requests, headers of replies, and what the log says."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Route

from tests.serve.running import Reply, Served, until
from tests.serve.wire import HOST, TEXT, Asking, classify, exchange, goes_on, head, reply_on
from weft.serve import calls
from weft.serve.app import ServedApp
from weft.serve.front import Front
from weft.serve.guard import Guard
from weft.serve.limits import ServeOptions
from weft.serve.metrics import ServerMetrics
from weft.serve.pool import Pool

KEY = "a-key-of-the-loom-42"
BEARER = {"Authorization": f"Bearer {KEY}"}
PAGE = "https://app.example.org"
SECRET = "zyzzyva"  # a word that stands in requests and nowhere else
OPEN = ("/", "/health", "/ready", "/docs", "/favicon.ico", "/static/page/app.js", "/static/picture/style.css")


@pytest.fixture(scope="module")
def locked(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with a key and a name, that a page may use, and that logs texts."""
    key = tmp_path_factory.mktemp("key") / "key"
    key.write_text(f"{KEY}\n")
    more = ("--allow-host", "Models.example.org", "--cors", PAGE, "--log-texts")
    with Served(str(models / "reviews"), "--api-key", str(key), *more) as served:
        yield served


def body_of(values: Any) -> bytes:
    return json.dumps(values).encode()


def posted(values: Any = TEXT, *lines: str, host: str = HOST, path: str = "/v1/classify") -> bytes:
    body = body_of(values)
    kind = () if any(line.lower().startswith("content-type") for line in lines) else ("Content-Type: application/json",)
    return head(f"POST {path}", *kind, f"Content-Length: {len(body)}", *lines, host=host) + body


# --------------------------------------------------------------------------------------------------- names and origins


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.0.0.1:8000", "localhost:1", "LOCALHOST", "localhost.", "[::1]", "[::1]:8000"],
)
def test_names_of_this_machine(server: Served, host: str) -> None:
    assert exchange(server, posted(host=f"Host: {host}\r\n")).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "Host: evil.example\r\n",
        "Host: 127.0.0.1.evil.example\r\n",
        "Host: evil.example:8000\r\n",
        "Host: evil.example@127.0.0.1\r\n",
        "Host: 127.0.0.1@evil.example\r\n",
        "Host: 127.0.0.1/evil\r\n",
        "Host: 127.0.0.1, evil.example\r\n",
        "Host: 0.0.0.0\r\n",
        "Host: 10.0.0.1\r\n",
        "Host: models.example.org\r\n",
        "Host: \r\n",
        "",
        "Host: 127.0.0.1\r\nHost: 127.0.0.1\r\n",
        "Host: 127.0.0.1\r\nhost: evil.example\r\n",
    ],
)
def test_other_names_are_refused_on_every_route(server: Served, host: str) -> None:
    """A page of evil.example whose name leads to this machine (DNS rebinding) sends its own name."""
    for data in (posted(host=host), head("GET /v1/models", host=host), head("GET /", host=host)):
        reply = exchange(server, data)
        assert reply.status == 403 and "--allow-host" in reply.error["message"]
        assert "access-control-allow-origin" not in reply.headers


def test_a_name_that_was_given(locked: Served) -> None:
    authorization = f"Authorization: Bearer {KEY}"
    for host, status in (("models.example.org", 200), ("MODELS.example.org:443", 200), ("other.example.org", 403)):
        assert exchange(locked, posted(TEXT, authorization, host=f"Host: {host}\r\n")).status == status


def test_pages_of_others_may_not_send(server: Served) -> None:
    own = f"http://127.0.0.1:{server.port}"
    assert classify(server, {"Origin": own}).status == 200
    for origin in (
        "http://evil.example", "null", f"https://127.0.0.1:{server.port}x", "http://127.0.0.1:1", "file://",
        f"{own}.evil.example", f"ftp://127.0.0.1:{server.port}", PAGE,
    ):  # fmt: skip
        reply = classify(server, {"Origin": origin})
        assert reply.status == 403 and "--cors" in reply.error["message"], origin
        read = server.get("/v1/models", {"Origin": origin})
        for each in (reply, read):  # a browser keeps from the page what it could read
            assert not [name for name in each.headers if name.startswith("access-control")]
        asked = server.ask("OPTIONS", "/v1/classify", None, {"Origin": origin, "Access-Control-Request-Method": "POST"})
        assert asked.status == 403 and "access-control-allow-origin" not in asked.headers
    # What browsers send from any page without asking: plain text, a form; their Origin gives them away, and without one
    # only the type that curl sends is read.
    for kind, origin, status in (
        ("text/plain", None, 415),
        ("multipart/form-data", None, 415),
        ("application/x-www-form-urlencoded", None, 200),
        ("application/x-www-form-urlencoded", own, 415),
        ("text/plain", "http://evil.example", 403),
    ):
        headers = {"Content-Type": kind, **({"Origin": origin} if origin else {})}
        assert server.post("/v1/classify", TEXT, headers).status == status, (kind, origin)
    goes_on(server)


def test_a_page_that_was_named(locked: Served) -> None:
    asked = locked.ask(
        "OPTIONS", "/v1/classify", None,
        {
            "Origin": PAGE, "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization, content-type, x-stainless-lang",
        },
    )  # fmt: skip
    assert asked.status == 204 and not asked.body
    assert asked.headers["access-control-allow-origin"] == PAGE
    # A star stands for all others: OpenAI's client in a page sends many of its own.
    assert set(asked.headers["access-control-allow-headers"].split(", ")) == {"authorization", "*"}
    assert "POST" in asked.headers["access-control-allow-methods"]
    assert "access-control-allow-credentials" not in asked.headers
    for headers, status in (({**BEARER, "Origin": PAGE}, 200), ({"Origin": PAGE}, 401)):
        reply = classify(locked, headers)
        assert reply.status == status and reply.headers["access-control-allow-origin"] == PAGE
        assert (
            "origin" in reply.headers["vary"].lower()
            and "retry-after" in (reply.headers["access-control-expose-headers"])
        )
    for origin in ("https://evil.example", "http://app.example.org", f"{PAGE}.evil.example", f"{PAGE}:8443"):
        assert classify(locked, {**BEARER, "Origin": origin}).status == 403


# ----------------------------------------------------------------------------------------------------------------- keys


def test_every_route_asks_for_the_key(locked: Served) -> None:
    document = locked.get("/openapi.json", BEARER).json()
    routes = [(method.upper(), path.replace("{name}", "reviews")) for path, each in document["paths"].items()
              for method in each]  # fmt: skip
    assert len(routes) > 18
    routes = [route for route in routes if route[1] not in OPEN]
    others = [("GET", "/metrics"), ("GET", "/openapi.json"), ("GET", "/nothing"), ("POST", "/"), ("HEAD", "/metrics"),
              ("POST", "/static/page/app.js"), ("OPTIONS", "/v1/classify"), ("GET", "/static"), ("GET", "//health"),
              ("GET", "/health/x"), ("GET", "/%2e/health"), ("TRACE", "/health")]  # fmt: skip
    wrong = (None, "", "Bearer", "Bearer ", f"Bearer {KEY[:-1]}", f"Bearer {KEY}x", f"Bearer {KEY.upper()}",
             f"Basic {KEY}", KEY, f"Bearer {KEY} {KEY}", f"Bearer Bearer {KEY}", "Bearer \xff\xfe")  # fmt: skip
    for method, path in [*routes, *others]:
        for given in wrong if path == "/v1/classify" else wrong[:1] + wrong[4:6]:
            headers = {} if given is None else {"Authorization": given}
            reply = locked.ask(method, path, b"no JSON" if method == "POST" else None, headers)
            assert reply.status == 401 and reply.headers["www-authenticate"] == "Bearer", (method, path, given)
            if method != "HEAD":
                assert reply.error["code"] == "invalid_api_key" and KEY not in reply.body.decode()
    for method, path in routes:  # with the key, what is wrong is another thing
        assert locked.ask(method, path, b"no JSON" if method == "POST" else None, BEARER).status in (200, 400)
    for given in (f"bearer {KEY}", f"BEARER  {KEY}"):
        goes_on(locked, {"Authorization": given})
    for path in OPEN:
        for method in ("GET", "HEAD"):
            assert locked.ask(method, path).status == 200
    with pytest.raises(AssertionError):  # a key in the address is none
        goes_on(locked, {"X-Api-Key": KEY})
    assert locked.get(f"/v1/models?api_key={KEY}").status == 401


def test_the_key_is_compared_in_constant_time() -> None:
    """Nothing but `hmac.compare_digest` looks at what is in the key."""
    tree = ast.parse(inspect.getsource(Guard).lstrip())
    compared = [node for node in ast.walk(tree) if isinstance(node, ast.Compare) and "self.key" in ast.unparse(node)]
    assert [ast.unparse(node) for node in compared] == ["self.key is None"]
    calls = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert [call for call in calls if "self.key" in call] == ["hmac.compare_digest(given.strip(), self.key)"]


# -------------------------------------------------------------------------------------------- requests of strange shape

CHUNKED = "Transfer-Encoding: chunked"
BODY = json.dumps(TEXT)
IN_ONE = f"{len(BODY):x}\r\n{BODY}\r\n0\r\n\r\n".encode()
JSON_LINE = "Content-Type: application/json"
POST = "POST /v1/classify"


@pytest.mark.parametrize(
    "data",
    [
        head(POST, JSON_LINE, f"Content-Length: {len(BODY)}", CHUNKED) + IN_ONE,
        head(POST, JSON_LINE, CHUNKED, f"Content-Length: {len(BODY)}") + IN_ONE,
        head(POST, JSON_LINE, "Content-Length: 5", f"Content-Length: {len(BODY)}") + BODY.encode(),
        head(POST, JSON_LINE, f"Content-Length: {len(BODY)}", f"Content-Length: {len(BODY)}") + BODY.encode(),
        head(POST, JSON_LINE, "Content-Length: 5, 5") + BODY.encode(),
        head(POST, JSON_LINE, "Content-Length: -5") + BODY.encode(),
        head(POST, JSON_LINE, f"Content-Length: +{len(BODY)}") + BODY.encode(),
        head(POST, JSON_LINE, f"Content-Length: {'9' * 40}") + BODY.encode(),
        head(POST, JSON_LINE, f"Content-Length : {len(BODY)}") + BODY.encode(),
        head(POST, JSON_LINE, "Transfer-Encoding: xchunked") + IN_ONE,
        head(POST, JSON_LINE, "Transfer-Encoding: identity") + IN_ONE,
        head(POST, JSON_LINE, "Transfer-Encoding: chunked, identity") + IN_ONE,
        head(POST, JSON_LINE, CHUNKED, CHUNKED, f"Content-Length: {len(BODY)}") + IN_ONE,
        head(POST, JSON_LINE, CHUNKED) + b"zz\r\n" + IN_ONE,
        head(POST, JSON_LINE, CHUNKED) + b"-1\r\n" + IN_ONE,
        head(POST, JSON_LINE, CHUNKED) + b"f" * 20 + b"\r\n" + IN_ONE,
        head(POST, JSON_LINE, f"Content-Length: {len(BODY)}", "X: a\r\n folded: line") + BODY.encode(),
        head(POST, JSON_LINE, "X: a\rContent-Length: 0") + BODY.encode(),
        head(POST, JSON_LINE, "X: a\x00b", f"Content-Length: {len(BODY)}") + BODY.encode(),
        b"POST /v1/classify HTTP/1.1\nHost: 127.0.0.1\nContent-Length: 2\n\n{}",
        head(POST, JSON_LINE, CHUNKED, "Expect: 100-continue") + b"zz\r\n",
        head("GET http://127.0.0.1"),
        head("GET /\xff\xfe"),
        head("GET /a b"),
        head(f"GET /{'a' * 70_000}"),
        head("CONNECT 127.0.0.1:22"),
        head("FOO /health"),
        b"GET /health HTTP/9.9\r\nHost: 127.0.0.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40),
        bytes(range(256)),
    ],
)  # fmt: skip
def test_what_is_no_http_is_refused(server: Served, data: bytes) -> None:
    """Nothing that two parsers could read in two ways (request smuggling) is read at all; the connection ends."""
    with server.connect() as connection:
        connection.sendall(data + head("GET /v1/models"))  # what would be hidden behind it
        received = b""
        while part := connection.recv(1 << 16):
            received += part
    assert received.startswith(b"HTTP/1.1 400 ") and received.count(b"HTTP/1.1") == 1
    values = json.loads(received.partition(b"\r\n\r\n")[2])
    assert values["error"]["message"] == "this is not HTTP"
    goes_on(server)
    assert not any("failure" in line for line in server.lines)


def test_http_that_is_rare_but_right(server: Served) -> None:
    for data in (
        head(POST, JSON_LINE, CHUNKED) + IN_ONE,
        head(POST, JSON_LINE, CHUNKED) + IN_ONE.replace(b"\r\n", b";name=value\r\n", 1),
        head(POST, JSON_LINE, CHUNKED) + b"".join(b"1\r\n%c\r\n" % byte for byte in BODY.encode()) + b"0\r\n\r\n",
        posted(TEXT, "Expect: 100-continue"),
        posted(TEXT, 'Content-Type: application/json; charset="UTF-8"; version=1'),
        head("GET http://evil.example/health"),  # as a proxy is asked: the name in Host decides
        b"\r\n\r\n" + head("GET /health"),
        f"GET /health HTTP/1.0\r\n{HOST}\r\n".encode(),
        head("GET /health", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"),
        head("GET /health", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: x"),
        head(POST, JSON_LINE, CHUNKED, "Trailer: X-Sum") + IN_ONE[:-2] + b"X-Sum: 1\r\n\r\n",
    ):
        with server.connect() as connection:
            connection.sendall(data)
            assert reply_on(connection).status == 200, data
    with server.connect() as connection:  # many at once, in order
        paths = ["/health", "/nothing", "/v1/models/gpt"] * 40
        connection.sendall(b"".join(head(f"GET {path}") for path in paths) + posted())
        received = b""
        while b'"object":"label"' not in received:
            received += connection.recv(1 << 16)
    assert [int(status) for status in re.findall(rb"HTTP/1.1 (\d+)", received)] == [200, 404, 200] * 40 + [200]


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("lines", [[f"Content-Length: {len(BODY)}"], [CHUNKED]])
def test_another_protocol_is_offered(server: Served, lines: list[str], split: bool) -> None:
    """As the client of Java does with its first request: it is answered in HTTP/1.1, and so is what comes next."""
    offer = ["Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAAAAIAAAAB"]
    body = BODY.encode() if lines != [CHUNKED] else IN_ONE
    for again in (True, False):
        with server.connect() as connection:
            parts = [head(POST, JSON_LINE, *lines, *offer), body[:9], body[9:]] * 2 + [head("GET /ready", *offer)] * 3
            if split:
                for part in parts:
                    connection.sendall(part)
                    time.sleep(0.02)
            else:
                connection.sendall(b"".join(parts))
            received = b""
            while received.count(b"HTTP/1.1 200 ") < 5 or not received.endswith(b"}"):
                received += connection.recv(1 << 16)
            assert received.count(b'"object":"label"') == 2 and received.count(b"HTTP/1.1 ") == 5
            connection.sendall(head("GET /health") if again else b"no HTTP\r\n\r\n")
            assert reply_on(connection).status == (200 if again else 400)
    goes_on(server)


def test_trailers_are_no_headers(locked: Served) -> None:
    """What comes behind a body is seen by no proxy that looks at headers."""
    name, key = HOST.encode(), f"Authorization: Bearer {KEY}\r\n".encode()
    for before, behind, status in ((name + key, b"", 200), (name, key, 401), (key, name, 403), (b"", name + key, 403)):
        start = f"{POST} HTTP/1.1\r\n{JSON_LINE}\r\n{CHUNKED}\r\n".encode()
        assert exchange(locked, start + before + b"\r\n" + IN_ONE[:-2] + behind + b"\r\n").status == status


def test_methods(server: Served) -> None:
    for method, path, allowed in (
        ("GET", "/v1/classify", "POST"),
        ("HEAD", "/v1/classify", "POST"),
        ("PUT", "/v1/classify", "POST"),
        ("OPTIONS", "/v1/classify", "POST"),
        ("DELETE", "/v1/models/gpt", "GET, HEAD"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("PATCH", "/", "GET, HEAD"),
        ("TRACE", "/health", "GET, HEAD"),
    ):
        reply = server.ask(method, path)
        assert reply.status == 405 and set(reply.headers["allow"].split(", ")) == set(allowed.split(", "))
        assert method == "HEAD" or reply.error["code"] == "method_not_allowed"
    for path in ("/", "/health", "/v1/models", "/metrics", "/static/page/app.js"):
        there, whole = server.ask("HEAD", path), server.get(path)
        assert there.status == 200 and not there.body
        assert path == "/metrics" or there.headers["content-length"] == str(len(whole.body))
    goes_on(server)


@pytest.mark.parametrize(
    "path",
    [
        "/static/../../../../etc/passwd",
        "/static/..%2f..%2f..%2fetc/passwd",
        "/static/%2e%2e/%2e%2e/guard.py",
        "/static/page/../../guard.py",
        "/static//etc/passwd",
        "/static/page/",
        "/static/page/app.js%00.html",
        "/static/page/app.js/",
        "/static/page\\app.js",
        "/static/file:///etc/passwd",
        "/v1/models/..%2f..%2fetc%2fpasswd",
        "/v1/models/..",
        "/v1/models/%2e%2e%2freviews",
        "/v1/models/reviews%00",
        "/v1/models/reviews%0aX",
        "/v1/models/%ff%fe",
        "/v1/models/{name}",
        "/health/",
        "//health",
        "/V1/models",
    ],
)
def test_paths_lead_nowhere_else(server: Served, path: str) -> None:
    reply = exchange(server, head(f"GET {path}"))
    assert reply.status == 404 and "root:" not in reply.body.decode() and "location" not in reply.headers
    assert no_inside(reply)


@pytest.mark.parametrize(
    "name",
    ["../reviews", "/etc/passwd", "reviews/../reviews", "./reviews", "reviews\n", "file:///etc/passwd",
     "http://127.0.0.1:1/x", "reviews ", "REVIEWS", "*", "hf:bert", "${HOME}", "{{7*7}}", "%2e%2e", "a" * 256],
)  # fmt: skip
def test_models_are_names_of_the_command_line(server: Served, models: Path, name: str) -> None:
    for given in (name, str(models / "reviews")):
        reply = classify(server, model=given)
        assert reply.status == 404 and reply.error["param"] == "model" and reply.error["code"] == "model_not_found"
        assert str(models) not in reply.error["message"] or given != name


# -------------------------------------------------------------------------------------------- what replies say and hide


def no_inside(reply: Reply) -> bool:
    """Whether a reply says nothing of the files, the code or the machine."""
    text = reply.body.decode()
    return not re.search(r"Traceback|\.py\b|site-packages|/home/|/tmp/|/work|/usr|pydantic|starlette|torch|line \d+ in",
                         text) and not reply.headers.get("server")  # fmt: skip


def test_errors_have_one_form_and_nothing_of_the_inside(server: Served) -> None:
    cases: list[tuple[int, str | None, Reply]] = [
        (404, None, server.get("/nothing")),
        (405, None, server.get("/v1/classify")),
        (404, "model", classify(server, model="nobody")),
        (422, "model", classify(server, model="gpt")),
        (422, "input", server.post("/v1/classify", {"model": "reviews"})),
        (422, "model", server.post("/v1/classify", {"input": "x"})),
        (422, "input[1]", classify(server, input=["a", 3])),
        (422, "input", classify(server, input=[])),
        (422, "tpo", classify(server, tpo=1)),
        (422, "model", classify(server, model=["reviews"])),
        (422, "view", server.post("/v1/look", {"model": "reviews", "input": "x", "view": "/etc/passwd"})),
        (400, "Weft-Deadline", classify(server, {"Weft-Deadline": "soon"})),
        (400, None, server.post("/v1/classify", b"{")),
        (400, None, server.post("/v1/classify", b"[]")),
        (400, None, server.post("/v1/classify", b"")),
        (400, None, server.post("/v1/classify", b"\xff\xfe{}")),
        (415, None, server.post("/v1/classify", TEXT, {"Content-Type": "application/xml"})),
        (415, None, server.post("/v1/classify", TEXT, {"Content-Type": "application/json; charset=utf-16"})),
        (415, None, server.post("/v1/classify", TEXT, {"Content-Encoding": "gzip"})),
        (415, None, exchange(server, head(POST, JSON_LINE, "Transfer-Encoding: gzip, chunked") + IN_ONE)),
        (403, None, server.get("/", {"Host": "evil.example"})),
        (422, "rows", server.post("/v1/tag", {"model": "names", "input": "x", "rows": {"url": "http://127.0.0.1/"}})),
    ]
    for status, param, reply in cases:
        assert reply.status == status and reply.error["param"] == param, reply.body
        assert reply.error["message"] and "\n" not in reply.error["message"] and no_inside(reply), reply.body
        assert reply.headers["content-type"] == "application/json"
    goes_on(server)


def test_a_mistake_of_ours_is_one_line_to_the_client_and_a_place_to_the_log(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options, pool = ServeOptions(), Pool([])
    app = ServedApp(Front(options, pool, lambda: False), ServerMetrics(dict, lambda: 0)).app
    calls = list[Any]()

    async def wrong(request: Any) -> Any:
        raise ZeroDivisionError(f"a text with {SECRET} in /home/somebody")

    app.router.routes.append(Route("/wrong", wrong))
    sent = list[Any]()

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {"type": "http", "method": "GET", "path": "/wrong", "raw_path": b"/wrong", "query_string": b"",
             "headers": [(b"host", b"127.0.0.1")], "client": ("127.0.0.1", 1), "root_path": ""}  # fmt: skip
    asyncio.run(Guard(app, options, None, calls.append)(scope, receive, send))
    begin, *rest = sent
    reply = Reply(
        begin["status"],
        {name.decode(): value.decode() for name, value in begin["headers"]},
        b"".join(part["body"] for part in rest),
    )
    (call,) = calls
    assert reply.status == 500 == call.status and call.reason == "internal_error"
    assert reply.error["message"] == f"internal error; the log has it as request {call.id}"
    (line,) = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert line["request"] == call.id and line["error"] == "ZeroDivisionError" and SECRET not in json.dumps(line)
    assert any(place.startswith("test_guard.py:") for place in line["at"])


def test_headers_of_every_reply(server: Served, locked: Served) -> None:
    for reply in (
        server.get("/"), server.get("/docs"), server.get("/static/page/app.js"), server.get("/health"),
        server.get("/nothing"), classify(server), server.post("/v1/classify", b"{"), classify(locked),
        server.get("/", {"Host": "evil.example"}), server.ask("HEAD", "/"), server.ask("OPTIONS", "/"),
        exchange(server, b"no HTTP\r\n\r\n"),
    ):  # fmt: skip
        assert reply.headers["x-content-type-options"] == "nosniff"
        if reply.status != 400 or "x-request-id" in reply.headers:
            assert reply.headers["x-frame-options"] == "DENY" and reply.headers["referrer-policy"] == "no-referrer"
            assert "frame-ancestors 'none'" in reply.headers["content-security-policy"]
            assert reply.headers["cache-control"] in ("no-store", "no-cache")
            assert reply.headers["cross-origin-resource-policy"] == "same-origin"
        assert "server" not in reply.headers and "x-powered-by" not in reply.headers
    policy = dict(part.strip().split(" ", 1) for part in server.get("/").headers["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert server.get("/health").headers["content-security-policy"].startswith("default-src 'none'")
    tag = server.get("/").headers["etag"]
    again = server.get("/", {"If-None-Match": tag})
    assert again.status == 304 and not again.body and again.headers["content-security-policy"]
    ids = [server.get("/health").headers["x-request-id"] for _ in range(3)]
    assert len(set(ids)) == 3


def test_nothing_is_loaded_from_elsewhere(server: Served) -> None:
    """No file of the page, nor of the documentation, names another host for the browser to load from."""
    from weft.serve.pages import page_files

    for path in page_files():
        reply = server.get(path)
        assert reply.status == 200
        text = reply.body.decode()
        assert not re.search(r"""(?:src|href|import|from|url\(|fetch\()\s*[=(]?\s*["'`]?(?:https?:)?//""", text), path
        assert not re.search(r"<script>|<style>| on\w+=|javascript:|\beval\(|new Function", text), path


# ------------------------------------------------------------------------------------------------------------- the log


def lines_of(server: Served, path: str) -> list[dict[str, Any]]:
    until(lambda: any(line["path"] == path for line in server.log()))
    return [line for line in server.log() if line["path"] == path]


def test_the_log_has_a_line_for_each_request_and_no_texts(server: Served) -> None:
    reply = classify(server, {"X-Note": SECRET, "User-Agent": SECRET, "Referer": f"http://{SECRET}"}, input=SECRET)
    wrong = classify(server, input=[SECRET, 3])
    broken = server.post("/v1/classify", f'{{"{SECRET}": 1'.encode())
    server.get(f"/v1/models?text={SECRET}")
    stream = {"model": "gpt", "prompt": SECRET, "max_tokens": 3, "stream": True}
    assert server.post("/v1/completions", stream).status == 200
    exchange(server, f"{SECRET}\r\n\r\n".encode())
    last = server.get("/nothing-more").headers["x-request-id"]
    until(lambda: any(line["request"] == last for line in server.log()))
    ids = [each.headers["x-request-id"] for each in (reply, wrong, broken)]
    lines = [line for line in server.log() if line["request"] in ids]
    assert [line["request"] for line in lines] == ids
    assert [line["status"] for line in lines] == [200, 422, 400]
    first = lines[0]
    assert first["path"] == "/v1/classify" and first["client"] == "127.0.0.1"
    assert first["method"] == "POST" and first["model"] == "reviews" and first["inputs"] == 1
    assert first["tokens_in"] > 0 and set(first["stages"]) == {"queue", "tokenize", "model", "post"}
    assert first["received"] > 0 and first["sent"] == len(reply.body) and first["seconds"] > 0
    assert lines[1]["reason"]
    assert SECRET not in "\n".join(server.lines)


def test_log_lines_cannot_be_forged(server: Served) -> None:
    forged = "/x%0a%7b%22time%22%3a%20%22now%22,%20%22status%22%3a%20200%7d%0d%1b%5b31m%00%e2%80%a8%c2%85"
    assert exchange(server, head(f"GET {forged}")).status == 404
    assert exchange(server, head("GET /" + "a" * 5000)).status == 404
    assert exchange(server, head("GET /%0a", "X-Forwarded-For: 6.6.6.6", "Forwarded: for=6.6.6.6")).status == 404
    (line,) = lines_of(server, '/x\n{"time": "now", "status": 200}\r\x1b[31m\x00\u2028\x85')
    assert line["status"] == 404
    assert lines_of(server, "/\n")[0]["client"] == "127.0.0.1"
    assert len(lines_of(server, "/" + "a" * 199)) == 1  # cut off
    for raw in list(server.lines):
        assert raw.isascii() and raw.isprintable(), raw


def test_texts_are_logged_where_that_is_wanted_and_keys_never(locked: Served) -> None:
    words = f"{SECRET}\n\x1b[31m{{"
    assert classify(locked, BEARER, input=words).status == 200
    assert classify(locked, {"Authorization": f"Bearer {KEY}x"}, input=f"{SECRET} without a key").status == 401
    until(lambda: any(SECRET in line.get("body", "") for line in locked.log()))
    bodies = [line["body"] for line in locked.log() if SECRET in line.get("body", "")]
    assert [json.loads(body)["input"] for body in bodies] == [words]
    assert KEY not in "\n".join(locked.lines)


def test_lines_that_nobody_reads_are_held_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "HELD", 1000)
    written, reading = list[str](), threading.Event()

    def write(text: str) -> None:
        assert reading.wait(30)
        written.append(text)

    log = calls.LogWriter(write)
    log.add("first")
    until(lambda: not log.lines)  # it is being written, and nobody reads
    for number in range(50):
        log.add(f"{number:0100}")
    reading.set()
    log.close(30)
    lines = "\n".join(written).splitlines()
    assert lines[0] == "first" and lines[1:-1] == [f"{number:0100}" for number in range(11)]
    assert json.loads(lines[-1]) == {"dropped_lines": 39}


def test_many_at_once_are_told_apart(server: Served) -> None:
    """Replies go to those who asked, however many share the connection's process."""
    names = [f"no-model-{number}" for number in range(24)]
    given = iter(names)
    replies = Asking(lambda: (name := next(given), classify(server, model=name).error["message"]), len(names)).ended()
    assert all(f"'{name}'" in message for name, message in replies) and len(replies) == len(names)
