"""Planted bugs are caught in Triton's interpreter. See planted.py and test_interpreted.py."""

import pytest
from bugs import BUGS
from families import FAMILIES, cases_of, versions_of
from planted import plant
from triton.runtime.errors import InterpreterError

ALL_VERSIONS = [(family, version) for family in FAMILIES for version in versions_of(family)]
PLANTED = [
    pytest.param(family, bug, id=bug.label)
    for family in FAMILIES
    for bug in BUGS[family]
    if not bug.only_compiled
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("family", "version"), ALL_VERSIONS)
def test_battery_passes_without_a_bug(family, version):
    cases_of(family).battery(versions_of(family)[version])


@pytest.mark.parametrize(("family", "bug"), PLANTED)
def test_planted_bug_is_caught(family, bug, tmp_path):
    interpreter_errors = (InterpreterError,) if family == "matmul" else ()  # by Triton 3.6
    module = plant(bug, tmp_path)
    with pytest.raises((AssertionError, pytest.fail.Exception, *interpreter_errors)):
        cases_of(family).battery(module)
