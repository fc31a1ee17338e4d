"""Records as rows, tables and files of other formats, judged by the model."""
