"""Matrix-vector products, y = A x."""
