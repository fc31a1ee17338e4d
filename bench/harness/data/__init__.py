"""The tensors of a case: inputs and their copies, and the checks of a result."""
