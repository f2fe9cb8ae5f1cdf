"""The ASGI application: all routes, with their entries in /openapi.json."""

from __future__ import annotations

import json
import time
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from weft.serve import openai_routes, task_routes
from weft.serve.front import Front
from weft.serve.metrics import CONTENT_TYPE, ServerMetrics
from weft.serve.openapi import Described, document
from weft.serve.refusals import Refusal
from weft.serve.schemas import CompletionRequest, EmbeddingRequest, LookRequest, RequestSchema, RerankRequest
from weft.serve.static import StaticFiles
from weft.serve.task_routes import TASK_ROUTES

WRONG = {404: "there is no such route; GET /openapi.json lists them", 405: "this route takes another method"}


# FastAPI's own telemetry would contain texts, and send them wherever the environment says.
SILENT: Any = {"auto_configure": False, "tracing": False, "metrics": False, "logs": False}


class ServedApp:
    """The routes of one server."""

    def __init__(self, front: Front, metrics: ServerMetrics) -> None:
        self.front, self.metrics = front, metrics
        self.static, self.created = StaticFiles(), int(time.time())
        self.described: list[Described] = []
        self.document: tuple[Any, str] = (None, "")  # the infos of the models, and the OpenAPI document for them
        self.app = FastAPI(
            openapi_url=None,
            docs_url=None,
            redoc_url=None,
            redirect_slashes=False,
            exception_handlers=HANDLERS,
            telemetry=SILENT,
        )
        self._add_models()
        self._add_pages()

    def _add_models(self) -> None:
        """Add the routes to models."""
        front = self.front
        routes: tuple[tuple[str, type[RequestSchema], str, Any, bool], ...] = (
            ("/v1/completions", CompletionRequest, "complete", openai_routes.completions, True),
            ("/v1/embeddings", EmbeddingRequest, "embed", openai_routes.embeddings, False),
            ("/v1/rerank", RerankRequest, "rank", openai_routes.rerank, False),
            ("/v2/rerank", RerankRequest, "rank", openai_routes.rerank, False),
            *((r.path, r.schema, r.task, task_routes.handler_of(r), r.streams) for r in TASK_ROUTES),
            ("/v1/look", LookRequest, "look", task_routes.look, False),
        )
        for path, schema, task, handler, streams in routes:
            self.described.append(Described(path, schema, task, streams))
            self.app.router.routes.append(Route(path, front.endpoint(path, schema, task, handler), methods=["POST"]))

    def _add_pages(self) -> None:
        """Add the routes that need no model."""
        static = self.static
        for path, handler in (
            ("/v1/models", self.models),
            ("/v1/models/{name}", self.one_model),
            ("/health", self.health),
            ("/ready", self.ready),
            ("/metrics", self.prometheus),
            ("/openapi.json", self.openapi),
            ("/docs", static.docs),
            ("/", static.index),
            ("/favicon.ico", static.icon),
            ("/static/{path:path}", static.file),
        ):
            self.app.router.routes.append(Route(path, counted(path, handler), methods=["GET"]))

    # ------------------------------------------------------------------------------------------------------- handlers

    async def models(self, request: Request) -> Response:
        cards = [openai_routes.model_card(name, info, self.created) for name, info in self.front.infos().items()]
        return JSONResponse({"object": "list", "data": cards})

    async def one_model(self, request: Request) -> Response:
        name = request.path_params["name"]
        return JSONResponse(openai_routes.model_card(name, self.front.known(name), self.created))

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """Whether requests should be sent here: all models are loaded, and the server is not stopping."""
        if self.front.is_draining():
            raise Refusal(503, "the server is ending", reason="draining")
        # This route needs no key, so it must not name models.
        if None in self.front.infos().values():
            raise Refusal(503, "the models are not ready yet", reason="not ready", headers={"Retry-After": "1"})
        return JSONResponse({"status": "ready"})

    async def prometheus(self, request: Request) -> Response:
        return Response(self.metrics.text(), media_type=CONTENT_TYPE)

    async def openapi(self, request: Request) -> Response:
        infos = self.front.infos()
        if self.document[0] != infos:  # kept, since building it takes as long as many requests
            self.document = (infos, json.dumps(document(self.described, infos, self.front.options)))
        return Response(self.document[1], media_type="application/json")


def counted(path: str, handler: Any) -> Any:
    """A handler that sets the route for the log and the metrics."""

    async def answer(request: Request) -> Response:
        request.scope["state"]["call"].route = path
        return await handler(request)

    return answer


async def refused(request: Request, error: Exception) -> Response:
    """The reply to a refusal; the guard logs its reason."""
    assert isinstance(error, Refusal)
    request.scope["state"]["call"].reason = error.reason
    return Response(error.body(), error.status, error.headers, "application/json")


async def no_route(request: Request, error: Exception) -> Response:
    """The reply where the router finds no route or method."""
    assert isinstance(error, HTTPException)
    headers = {name: value for name, value in (error.headers or {}).items() if name.lower() == "allow"}
    return await refused(request, Refusal(error.status_code, WRONG.get(error.status_code, "no"), headers=headers))


async def failed(request: Request, error: Exception) -> Response:
    """The reply to an unexpected exception; Starlette raises it again, and the guard logs it."""
    message = f"internal error; the log has it as request {request.scope['state']['call'].id}"
    return await refused(request, Refusal(500, message))


HANDLERS: dict[Any, Any] = {Refusal: refused, HTTPException: no_route, Exception: failed}
