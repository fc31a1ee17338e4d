"""The page of runs: one HTML file with a roofline to look into, a table, and what each number means.

It is made in this order: `roofs`, `rows`, `modules` and `verdicts` turn a scene and its runs into plain values,
`content` puts them together, and `document` writes them into the templates, with Plotly and all scripts inside. May
import `plot`.
"""
