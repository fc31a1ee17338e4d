"""Runs to compare: samples with known noise, and what the command says of them."""

import json
import random

from results.__main__ import main


def samples(scale, seed, count=80, noise=0.002):
    generator = random.Random(seed)
    return tuple(scale * 4e-6 * generator.lognormvariate(0, noise) for _ in range(count))


def case(size):
    return {"case": f"{size}x{size}", "shape": {"m": size, "n": size}}


NO_DRIFT = ("--drift", "0%")
"""These runs were made on a machine that does not drift: what is allowed for it has tests of its
own.
"""


def compared(capsys, *arguments, margin="1%"):
    """Return exit code and JSON document of a comparison, by default without drift; a margin of
    None is not given.
    """
    if "--drift" not in arguments:
        arguments += NO_DRIFT
    if "--margin" not in arguments and margin is not None:
        arguments += ("--margin", margin)
    code = main(["compare", *arguments, "--format", "json"])
    return code, json.loads(capsys.readouterr().out)


def refused(capsys, *arguments):
    """Return the one line that a refused comparison says."""
    try:
        code = main(["compare", *arguments])
    except SystemExit as leaving:
        code = leaving.code
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    return err
