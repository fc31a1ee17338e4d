"""The numbers that the lecture notes claim, each computed again."""
