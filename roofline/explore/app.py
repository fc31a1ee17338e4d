"""The script that Streamlit runs: the page of `calculators.toml` that the address names."""

from __future__ import annotations

import streamlit as st

from roofline.explore.page import PAGES, draw


def main() -> None:
    """Draw the page that the address names, `?page=` and the name of a calculator."""
    if st.session_state.get("page") not in PAGES:
        asked = st.query_params.get("page")
        st.session_state["page"] = asked if asked in PAGES else next(iter(PAGES))
    st.set_page_config(page_title=f"{PAGES[st.session_state['page']]['title']} - Ridgepoint", layout="wide")
    with st.sidebar:
        page = st.radio(
            "Calculators",
            PAGES,
            key="page",
            format_func=lambda name: PAGES[name]["title"],
            on_change=st.query_params.clear,
        )
        st.caption("Each answer is that of the command beside it. Nothing leaves this machine.")
    st.query_params["page"] = page
    draw(page)


if __name__ == "__main__":
    main()
