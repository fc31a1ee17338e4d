"""python -m results compare --by git: whose revision counts, and what the hash of a kernel's file
tells beside it.
"""

import pytest
from compare_runs import compared, refused

MINE = "mine.py:gelu"
ONE, OTHER = "1" * 40, "2" * 40


@pytest.fixture
def users(measured):
    """Returns a function that makes a record of a user's function: a repository's sha, and the hash
    of its file.
    """

    def make(sha=ONE, dirty=False, text="a", **changes):
        git = {"sha": sha, "dirty": dirty} if sha else None
        return measured(
            **({"provider": MINE, "source_git": git, "source_sha256": text * 64} | changes)
        )

    return make


@pytest.fixture
def here():
    """The measuring code's own revision, the same for both runs."""
    return {"git": {"sha": "c" * 40, "dirty": False}}


def names(document):
    return {(row["baseline"], row["candidate"]) for row in document["rows"]}


def test_the_revisions_are_those_of_the_users_repository(capsys, users, save, here):
    paths = (
        save("a", users(), **here),
        save("b", users(OTHER, dirty=True, text="b", seed=1), **here),
    )
    _, document = compared(capsys, *paths, "--by", "git")
    assert names(document) == {("1111111111", "2222222222-dirty")}
    # They name the sides without the option too.
    assert names(compared(capsys, *paths)[1]) == {("1111111111", "2222222222-dirty")}


def test_the_newest_run_of_the_last_two_revisions(capsys, measured, keep):
    """Earlier runs of the same revision, of another op or of a later day are passed over."""
    first = {"git": {"sha": "a" * 40}}
    second = {"git": {"sha": "b" * 40}}
    keep(10, measured(), **first)
    keep(11, measured(seed=1), **first)
    keep(12, measured(op="gelu"), git={"sha": "e" * 40})
    keep(13, measured(2, seed=2), **second)
    keep(14, measured(2, seed=3), **second)
    for given in ([], ["latest"], ["bbbb"]):
        document = compared(capsys, *given, "--by", "git", "--op", "matmul")[1]
        assert names(document) == {("a" * 10, "b" * 10)}
        sides = [document["summary"][side]["run_id"][:8] for side in ("baseline", "candidate")]
        assert sides == ["20261111", "20261114"]
    assert "no earlier run" in refused(capsys, "latest~3", "--by", "git", "--op", "matmul")


def test_file_outside_a_repository_has_no_revision(capsys, users, save):
    before, after = save("a", users(None)), save("b", users(None, text="b"))
    assert "the runs are of one revision, or of an unknown one" in refused(
        capsys, before, after, "--by", "git"
    )


def test_users_revisions_name_sides_among_other_providers(capsys, users, measured, save, here):
    before = save("a", users(), measured(provider="torch"), **here)
    after = save("b", users(OTHER, seed=1), measured(provider="torch", seed=2), **here)
    assert names(compared(capsys, before, after, "--by", "git")[1]) == {
        ("1111111111", "2222222222")
    }


def test_measuring_code_names_runs_if_the_users_file_is_unchanged(capsys, users, measured, save):
    records = users(), measured(provider="triton-v2", source_sha256="e" * 64)
    before, after = (
        save(name, *records, git={"sha": name * 40, "dirty": False}) for name in ("a", "b")
    )
    assert names(compared(capsys, before, after, "--by", "git")[1]) == {("a" * 10, "b" * 10)}
    # Of the user's file alone both runs are of one revision.
    found = refused(capsys, before, after, "--by", "git", "--provider", MINE)
    assert "the runs are of one revision" in found


def test_two_repositories_are_both_named(capsys, users, save, here):
    before = save("a", users(), users(OTHER, provider="theirs.py:gelu"), **here)
    after = save("b", users(OTHER), users(OTHER, provider="theirs.py:gelu"), **here)
    _, document = compared(capsys, before, after, "--by", "git")
    assert names(document) == {("1111111111 + 2222222222", "2222222222")}
