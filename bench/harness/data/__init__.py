"""The tensors of a case: inputs and their copies, guarded buffers, and the checks of a result."""
