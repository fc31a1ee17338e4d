"""The executable lecture: statements of the notes beside what this machine measures.

`measured` plans the rows that statements name, and evaluates their expressions; `page` writes the HTML page.
"""
