"""`python -m roofline explore`: calculators in a browser."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path

from results.show.options import number
from results.show.terminal import OK, USAGE, Parser, fail, install_command

APP = Path(__file__).parents[1] / "explore" / "app.py"
HOST = "127.0.0.1"
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
    from streamlit.web.cli import main

    try:
        main(["run", str(APP), *options(args.port, args.no_browser)], standalone_mode=False)
    except SystemExit as error:  # it says that the port is in use
        return USAGE if error.code else OK
    return OK


def options(port: int | None, is_headless: bool) -> list[str]:
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
        "global.disableWidgetStateDuplicationWarning": True,  # sliders write their fields
        "theme.light.primaryColor": "#0062b1",  # contrast on white according to axe
        "theme.dark.primaryColor": "#6db6ff",
        "server.port": port,
    }
    known = {name: value for name, value in values.items() if value is not None}
    return [f"--{name}={str(value).lower()}" for name, value in known.items()]
