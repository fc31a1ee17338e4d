"""The command `roofline estimate`: its options, one part a question, tables over two options, and its words."""
