"""The script that Streamlit runs: a page for each file of `calculators/`, by their places."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import streamlit as st

from roofline.explore import calculators
from roofline.explore.page import draw


def found() -> list[Any]:
    """Return the calculators, which are the files of their folder."""
    names = [module.name for module in iter_modules(calculators.__path__)]
    loaded = [import_module(f"{calculators.__name__}.{name}") for name in names]
    return sorted(loaded, key=lambda module: (module.PLACE, module.TITLE))


def main() -> None:
    """Draw the page that the address names."""
    st.set_page_config(page_title="Ridgepoint", layout="wide")
    pages = [
        st.Page(
            partial(draw, module), title=module.TITLE, url_path=module.__name__.rpartition(".")[2], default=place == 0
        )
        for place, module in enumerate(found())
    ]
    st.navigation(pages).run()


if __name__ == "__main__":
    main()
