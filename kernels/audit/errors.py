"""What a user can put right."""


class AuditError(Exception):
    """One line for the user: what is wrong, which value, what is allowed."""


def one_line(error: BaseException, limit: int = 300) -> str:
    """Return the first line of an error that says something, in at most `limit` characters."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:limit] if lines else type(error).__name__
