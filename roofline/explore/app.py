"""The script that Streamlit runs: a page for each file of `calculators/`, by their places."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import streamlit as st

from roofline.explore import calculators
from roofline.explore.page import draw


def found() -> dict[str, Any]:
    """Return the calculators by name, which are the files of their folder."""
    names = [module.name for module in iter_modules(calculators.__path__)]
    loaded = {name: import_module(f"{calculators.__name__}.{name}") for name in names}
    return dict(sorted(loaded.items(), key=lambda item: (item[1].PLACE, item[0])))


def main() -> None:
    """Draw the page that the address names, `?page=` and the name of a calculator."""
    known = found()
    if st.session_state.get("page") not in known:
        asked = st.query_params.get("page")
        st.session_state["page"] = asked if asked in known else next(iter(known))
    title = known[st.session_state["page"]].TITLE
    st.set_page_config(page_title=f"{title} - Ridgepoint", layout="wide")
    with st.sidebar:
        page = st.radio(
            "Calculators",
            known,
            key="page",
            format_func=lambda name: known[name].TITLE,
            on_change=st.query_params.clear,
        )
        st.caption("Each answer is that of the command beside it. Nothing leaves this machine.")
    st.query_params["page"] = page
    draw(known[page])


if __name__ == "__main__":
    main()
