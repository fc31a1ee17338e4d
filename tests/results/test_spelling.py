"""Words that a user may have meant."""

import pytest

from results.show.spelling import did_you_mean, known_as

OPS = ("gelu", "gelu-tanh", "relu", "residual-add", "cross_entropy")


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("GELU", "gelu"),
        ("gelu_tanh", "gelu-tanh"),
        ("cross-entropy", "cross_entropy"),
        ("relu", "relu"),
        ("a", "a"),
    ],
)
def test_another_spelling_of_one_name_is_that_name(word, name):
    assert known_as(word, OPS) == name


def test_a_word_that_spells_two_names_is_left_alone():
    assert known_as("A_B", ("a-b", "ab")) == "A_B"
    assert known_as("a-b", ("a-b", "ab")) == "a-b"


@pytest.mark.parametrize(
    ("word", "question"),
    [
        ("gellu", "did you mean gelu?"),
        ("Residual_ad", "did you mean residual-add?"),
        ("", ""),
        ("attention", ""),
        ("x" * 10_000, ""),
    ],
)
def test_the_nearest_names_are_asked_for(word, question):
    assert did_you_mean(word, OPS) == question


@pytest.mark.parametrize(
    ("word", "known", "question"),
    [
        ("--gpu", ("--machine", "--margin"), "did you mean --machine?"),
        ("--device", ("--machine", "--device"), "did you mean --machine or --device?"),
        ("--machine", ("--cache", "--device"), ""),
        ("--shapes", ("--shape", "--cache"), "did you mean --shape?"),
        ("latency", ("matvec", "calibrate"), "did you mean calibrate?"),
        ("fp8", ("fp16", "fp8e4m3", "fp8e5m2"), "did you mean fp8e4m3 or fp8e5m2?"),
        ("matmull", ("matmul", "mul", "grouped-matmul"), "did you mean matmul?"),
    ],
)
def test_words_that_users_try_are_suggested(word, known, question):
    assert did_you_mean(word, known) == question
