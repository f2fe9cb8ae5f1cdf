"""`weft serve` and `weft top`: serve models over HTTP, and watch a server."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from weft.cli import inputs, late
from weft.cli.options import Flags, Given, argument, flag
from weft.errors import UserError, escaped, refuse
from weft.files import read_text

ADDRESS = "http://127.0.0.1:8000"
Placement = Annotated[Given, Flags("weft.cli.options:RuntimeOptions", without=("online", "language", "precision"))]


def serve(
    models: Annotated[list[str], argument("MODEL...", "Model folders; NAME=FOLDER gives one another name.")],
    options: Annotated[Given, Flags("weft.serve.limits:ServeOptions")],
    runtime: Placement,
) -> None:
    """Serve models over HTTP: OpenAI's API, a route for each task, and a web page at the same address.

    Only this machine can reach it unless --host and an API key are given. SIGTERM and Ctrl-C stop it after the open
    requests are answered; SIGHUP loads the model folders again.

    Example: weft serve runs/reviews runs/gpt
    Example: weft serve reviews=runs/reviews-int8 --port 8080 --workers 2
    """
    from weft.serve.limits import ServeOptions

    given: Given = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    chosen = ServeOptions(**given)
    inputs.check_device(runtime.get("device"))
    try:
        from weft.serve import server
        from weft.serve.pool import ServedModel
    except ImportError as error:
        raise UserError(f"a server needs the package {error.name}: pip install 'weft[serve]'") from None
    folders = server.names_of(models)
    inputs.check_models(*folders.values())
    served = [
        ServedModel(name=name, folder=late.locate.find_folder(folder, False), workers=chosen.workers, **runtime)
        for name, folder in folders.items()
    ]
    if status := server.run(served, chosen):
        raise typer.Exit(status)


def top(
    url: Annotated[str, argument("[URL]", "Address of a server. Default: http://127.0.0.1:8000")] = ADDRESS,
    once: Annotated[bool, flag("Print the figures since the start of the server, and exit.", None, "--once")] = False,
    json: Annotated[bool, flag("Print them once as JSON.", None, "--json")] = False,
    interval: Annotated[float, flag("Time between two updates.", "SECONDS")] = 2.0,
    api_key: Annotated[str | None, flag("File with the key of the server. Default: $WEFT_API_KEY.", "FILE")] = None,
) -> None:
    """Watch a server: requests and latencies of each route, queue, tokens and memory of each model.

    Rates and latencies are those of the last ten seconds; with --once, or if the output is not a terminal, those since
    the start of the server. Ctrl-C ends it.

    Example: weft top
    Example: weft top http://127.0.0.1:8080 --once
    """
    from weft.client import Client
    from weft.serve.top import Watcher

    refuse((not 0.1 <= interval <= 3600, f"--interval must be between 0.1 and 3,600 seconds, not {interval}"))
    watcher = Watcher(Client(url, None if api_key is None else read_text(Path(api_key), 4096).strip(), timeout=10.0))
    if json:
        inputs.print_json(watcher.since_start().values())
    elif once or not sys.stdout.isatty():
        print(shown_figures(watcher.since_start(), watcher.client.url))
    else:
        show_live(watcher, interval)


def shown_figures(figures: Any, url: str) -> str:
    """The server in one line, and a table of routes and one of models."""
    return "\n\n".join([escaped(figures.line(url)), *(inputs.table(header, rows) for header, rows in figures.tables())])


def show_live(watcher: Any, interval: float) -> None:
    """The same tables, updated in place until Ctrl-C."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False, markup=False)
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                text = shown_figures(watcher.lately(), watcher.client.url)
                live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)
                time.sleep(interval)
    except KeyboardInterrupt:  # the way to end it
        pass
