"""What the compiler makes of a kernel, read from its machine code on any machine, with or without a GPU."""
