"""The roofline figure: its scene, its drawing, its labels and its sheet."""
