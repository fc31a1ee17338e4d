"""`python -m roofline explore`: calculators in a browser."""

from __future__ import annotations

import argparse
import socket
from importlib.util import find_spec
from pathlib import Path

from results.show.options import number
from results.show.terminal import Parser, fail, install_command, say

APP = Path(__file__).parents[1] / "explore" / "app.py"
HOST = "127.0.0.1"
PORTS = range(8501, 8601)
PORT = number(1024, 65535, "a port from 1024 to 65535", int)

DESCRIPTION = """Open the estimates of `python -m roofline estimate` in a browser, with plots. Only
this machine can connect. Nothing is sent anywhere; nothing is stored except downloads and
Matplotlib's font cache. Stop with Ctrl-C. Requires Streamlit, the extra `explore` of this
project."""


def add_options(parser: Parser) -> None:
    parser.description = DESCRIPTION
    parser.add_argument(
        "--port", type=PORT, metavar="N", help="port (default: the first free one from 8501)"
    )
    parser.add_argument("--no-browser", action="store_true", help="only print the address")


def run(args: argparse.Namespace) -> int:
    if not find_spec("streamlit"):
        return fail(args.prog, f"Streamlit is required: {install_command('explore')}")
    port = next((port for port in ([args.port] if args.port else PORTS) if _is_free(port)), None)
    if port is None:
        ports = args.port or f"{PORTS[0]} to {PORTS[-1]}"
        return fail(args.prog, f"port {ports} is in use: choose another one with --port")
    from streamlit.web.cli import main

    say(f"http://{HOST}:{port}   stop with Ctrl-C")
    main(["run", str(APP), *options(port, args.no_browser)], standalone_mode=False)
    return 0


def options(port: int, is_headless: bool) -> list[str]:
    """Return the options of `streamlit run`: local only, no telemetry, no file watcher."""
    values = {
        "server.address": HOST,
        "server.headless": is_headless,
        "server.showEmailPrompt": False,
        "server.fileWatcherType": "none",
        "browser.serverAddress": HOST,
        "browser.gatherUsageStats": False,
        "client.toolbarMode": "viewer",
        "logger.level": "warning",
        "logger.hideWelcomeMessage": True,
        "global.disableWidgetStateDuplicationWarning": True,  # sliders write their fields
        "theme.light.primaryColor": "#0062b1",  # contrast on white according to axe
        "theme.dark.primaryColor": "#6db6ff",
        "server.port": port,
    }
    return [f"--{name}={str(value).lower()}" for name, value in values.items()]


def _is_free(port: int) -> bool:
    try:
        socket.create_server((HOST, port)).close()
    except OSError:
        return False
    return True
