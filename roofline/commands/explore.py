"""`python -m roofline explore`: calculators in a browser, on this machine alone."""

from __future__ import annotations

import argparse
import socket
from importlib.util import find_spec
from pathlib import Path

from results.show.terminal import fail, say

APP = Path(__file__).parents[1] / "explore" / "app.py"
HOST = "127.0.0.1"
PORTS = range(8501, 8601)

DESCRIPTION = """Calculators in a browser: the questions of `roofline estimate`, with sliders and pictures.
Served to this machine alone: nothing is sent anywhere, and nothing is written but what you take away,
and the font cache of Matplotlib. Ctrl-C ends it.
It needs Streamlit and Plotly: pip install -e '.[explore]'"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("explore", description=DESCRIPTION)
    parser.add_argument("--port", type=_port, metavar="N", help="default: 8501, or the next one that is free")
    parser.add_argument("--no-browser", action="store_true", help="open no browser, print the address alone")
    parser.set_defaults(run=run, prog=parser.prog)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or not 1024 <= int(text[:6]) <= 65535:
        raise argparse.ArgumentTypeError(f"'{text[:20]}' must be a port from 1024 to 65535")
    return int(text)


def run(args: argparse.Namespace) -> int:
    if not all(map(find_spec, ("streamlit", "plotly"))):
        return fail(args.prog, "Streamlit and Plotly are needed: pip install -e '.[explore]'")
    port = next((port for port in ([args.port] if args.port else PORTS) if _is_free(port)), None)
    if port is None:
        ports = args.port or f"{PORTS[0]} to {PORTS[-1]}"
        return fail(args.prog, f"port {ports} is taken: choose another one with --port")
    from streamlit.web.cli import main

    say(f"http://{HOST}:{port}   Ctrl-C ends it")
    main(["run", str(APP), *options(port, args.no_browser)], standalone_mode=False)
    return 0


def options(port: int, is_headless: bool) -> list[str]:
    """Return the options of `streamlit run`: this machine alone, nothing sent, nothing written, no file watched."""
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
        "theme.light.primaryColor": "#0062b1",  # dark enough to be read on white, as axe has it
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
