"""`kinor ui`: the page of a store, in the foreground until Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import webbrowser
from argparse import Namespace

from kinetic_orchestration.api.opening import place_of
from kinetic_orchestration.api.printer import say
from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.protocol.system import kernel
from kinetic_orchestration.ui.catalog import Catalog
from kinetic_orchestration.ui.server import Server


def ui(arguments: Namespace) -> int:
    """Serve the page until Ctrl-C or SIGTERM. Raises StoreError if the store cannot be read, UsageError for a port that
    is taken."""
    store, backend, settings = place_of(store=arguments.store, deployment=arguments.deployment)
    catalog = Catalog(store, backend, settings)
    catalog.page()  # a store that cannot be read is told of here, and not in a browser
    asked_to_end = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: asked_to_end.set())
    try:
        server = Server(catalog, arguments.port)
    except OSError as error:
        raise UsageError(
            f"port {arguments.port} of 127.0.0.1 cannot be had ({error.strerror}): leave --port out, and a free one is "
            "taken"
        ) from error
    with server:
        threading.Thread(target=server.serve_forever, args=(0.1,), name="page", daemon=True).start()
        address = f"{server.address}?token={server.token}"
        if arguments.json:
            print(json.dumps({"address": address, "store": store.url}), flush=True)
        else:
            print(f"{store.url} is shown at\n\n  {address}\n", flush=True)
            say("only this address opens the page: it has a token of its own. Ctrl-C ends it")
        if not arguments.no_browser and not arguments.json and sys.stdout.isatty() and _has_screen():
            webbrowser.open(f"{server.address}?token={server.token_for_once()}")
        while not asked_to_end.wait(1.0):
            pass  # a signal that came just before a wait does not end it
        server.shutdown()
    catalog.close()
    return 0


def _has_screen() -> bool:
    return kernel.MACOS or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
