"""Words that a user may have meant."""

import pytest

from results.show.spelling import did_you_mean, known_as

OPS = ("gelu", "gelu-tanh", "relu", "residual-add", "cross_entropy")


@pytest.mark.parametrize(
    ("word", "name"),
    [("GELU", "gelu"), ("gelu_tanh", "gelu-tanh"), ("cross-entropy", "cross_entropy"), ("relu", "relu"), ("a", "a")],
)
def test_another_spelling_of_one_name_is_that_name(word, name):
    assert known_as(word, OPS) == name


def test_a_word_that_spells_two_names_is_left_alone():
    assert known_as("A_B", ("a-b", "ab")) == "A_B"
    assert known_as("a-b", ("a-b", "ab")) == "a-b"


@pytest.mark.parametrize(
    ("word", "question"),
    [
        ("gellu", "did you mean gelu, relu or gelu-tanh?"),
        ("Residual_ad", "did you mean residual-add?"),
        ("", ""),
        ("attention", ""),
        ("x" * 10_000, ""),
    ],
)
def test_the_nearest_names_are_asked_for(word, question):
    assert did_you_mean(word, OPS) == question
