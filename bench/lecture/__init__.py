"""The executable lecture: statements of the notes beside what this machine measures.

`figures` has what is measured for each statement; `measured` measures it; `page` writes the HTML
page.
"""
