"""Pictures: what a roofline shows (`scene`), drawn by matplotlib into files and by Plotly into
pages.
"""
