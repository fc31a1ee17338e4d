"""`kernels` is also the name of another package: neither may replace the other."""

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("bench", "kernels", "roofline", "results")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DIST_INFO = f"{PROJECT['name']}-{PROJECT['version']}.dist-info"
PLUGIN = "roofmark_pytest.py"
"""The only module of a wheel: pytest loads it at every start."""


def python(*arguments, cwd, path=()):
    """Run Python in a separate process, with `path` before everything installed."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def foreign(tmp_path):
    """Return a directory with another distribution's `kernels`."""
    folder = tmp_path / "site"
    (folder / "kernels").mkdir(parents=True)
    (folder / "kernels" / "__init__.py").touch()
    return folder


@pytest.fixture
def elsewhere(tmp_path):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("command", ["bench.matmul", "bench"])
def test_a_foreign_kernels_package_is_a_one_line_error(foreign, elsewhere, command):
    done = python("-m", command, "--help", cwd=elsewhere, path=(foreign, ROOT))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("bench: 'kernels' would be imported from ")
    assert str(foreign) in done.stderr


def test_in_the_repository_our_packages_come_first(foreign):
    done = python("-m", "bench.matmul", "--help", cwd=ROOT, path=(foreign,))
    assert (done.returncode, done.stderr) == (0, "")


def build(kind, folder):
    """Return the file that the build backend makes, as pip calls it."""
    pytest.importorskip(
        "hatchling", reason="the build backend is not installed here: pip install -e '.[test]'"
    )
    code = f"import sys, hatchling.build; print(hatchling.build.build_{kind}(sys.argv[1]))"
    done = python("-c", code, str(folder), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return folder / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def editable(tmp_path_factory):
    return build("editable", tmp_path_factory.mktemp("editable"))


def test_a_plain_wheel_has_only_the_pytest_plug_in(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert f"{DIST_INFO}/METADATA" in names
    assert [name for name in names if not name.startswith(f"{DIST_INFO}/")] == [PLUGIN]


@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_the_pytest_entry_point_names_an_installed_module(request, kind):
    with zipfile.ZipFile(request.getfixturevalue(kind)) as archive:
        entry_points = archive.read(f"{DIST_INFO}/entry_points.txt").decode()
        module = archive.read(PLUGIN)
    assert entry_points.split() == ["[pytest11]", "roofmark", "=", PLUGIN.removesuffix(".py")]
    assert module == (ROOT / "bench" / "harness" / "fixture" / PLUGIN).read_bytes()


def test_an_editable_install_is_found_from_anywhere(editable, tmp_path, elsewhere):
    site = tmp_path / "site"
    with zipfile.ZipFile(editable) as archive:
        archive.extractall(site)
    code = (
        f"import site; site.addsitedir({str(site)!r}); import bench, kernels, roofline, results; "
        "print(*[module.__file__ for module in (bench, kernels, roofline, results)], sep='\\n')"
    )
    done = python("-S", "-c", code, cwd=elsewhere)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [str(ROOT / package / "__init__.py") for package in PACKAGES]


def test_a_source_distribution_has_no_runs(tmp_path):
    made = build("sdist", tmp_path)
    with tarfile.open(made) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "bench/matmul.py",
        "roofline/gpus/h100-sxm.toml",
    }
    wanted |= {"results/show/words.toml"}
    wanted |= {
        f"roofline/picture/templates/{name}" for name in ("page.html", "page.css", "page.js")
    }
    assert names >= wanted | {f"{package}/__init__.py" for package in PACKAGES}
    assert not [
        name
        for name in names
        if name.startswith(("results/runs", ".git/", ".venv")) or name.endswith(".pyc")
    ]


@pytest.mark.parametrize(
    ("system", "left_out"),
    [("linux", set()), ("win32", {"triton"}), ("darwin", {"triton", "nvidia-ml-py"})],
)
def test_dependencies_without_a_wheel_are_not_required(system, left_out):
    needed = [Requirement(text) for text in PROJECT["dependencies"]]
    skipped = {
        requirement.name
        for requirement in needed
        if requirement.marker and not requirement.marker.evaluate({"sys_platform": system})
    }
    assert skipped == left_out
