"""The page as one HTML file: templates, data and scripts put together, with a policy that lets nothing else run."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

TEMPLATES = Path(__file__).parent / "templates"
SCRIPTS = ("data.js", "filters.js", "plot.js", "table.js", "page.js")
"""In the order in which they are needed; in the page they are one script."""
NEEDED = ("plotly", "jinja2")


class MissingExtraError(RuntimeError):
    """What a page is made with is not installed; the message is one line for the user."""


def check_extra() -> None:
    """Say what is missing before any work is done.

    Raises:
        MissingExtraError: Plotly or Jinja is not installed.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise MissingExtraError(f"a page needs {' and '.join(missing)}: python -m pip install -e '.[page]'")


def page_html(content: Mapping[str, Any]) -> str:
    """Return the page that shows what `page_content` returned.

    Raises:
        MissingExtraError: Plotly or Jinja is not installed.
    """
    check_extra()
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    templates = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    own = "".join((TEMPLATES / name).read_text(encoding="utf-8") for name in SCRIPTS)
    scripts = [get_plotlyjs(), f'"use strict";\n{own}']
    if any("</script" in script.lower() or "\r" in script for script in scripts):
        raise ValueError("a script would end within itself")
    return templates.get_template("page.html").render(
        content=content,
        policy=policy(scripts),
        style=Markup((TEMPLATES / "page.css").read_text(encoding="utf-8")),  # a file of ours
        data=Markup(embedded(content)),  # without any letter that HTML obeys
        scripts=[Markup(script) for script in scripts],
    )


def embedded(content: Mapping[str, Any]) -> str:
    """Return JSON for a script element: what HTML would obey stands as its escape."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")


def policy(scripts: list[str]) -> str:
    """Return the policy of the page: these scripts run and no other, nothing is loaded, nothing is sent.

    Plotly writes styles as it draws, so that styles are allowed, and pictures are made of data.

    Source: W3C, Content Security Policy Level 3.
    """
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{found}'" for found in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
