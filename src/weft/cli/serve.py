"""`weft serve`: models behind HTTP. The web framework is imported when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from weft.cli import inputs, late
from weft.cli.options import Flags, Given, argument
from weft.errors import UserError

Placement = Annotated[Given, Flags("weft.cli.options:RuntimeOptions", without=("online", "language", "precision"))]


def serve(
    models: Annotated[list[str], argument("MODEL...", "Model folders; NAME=FOLDER gives one another name.")],
    options: Annotated[Given, Flags("weft.serve.limits:ServeOptions")],
    runtime: Placement,
) -> None:
    """Serve models over HTTP: OpenAI's API, a route for each task, and a page for people at the same address.

    Only this machine can reach it unless --host and an API key are given. SIGTERM and Ctrl-C end it when all requests
    are answered; SIGHUP opens the model folders anew.

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
