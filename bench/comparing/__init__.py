"""`python -m bench compare`: the providers of a case measured in turns, and judged by
`results.compare`.
"""
