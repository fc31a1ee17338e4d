"""The wheel, the source distribution and an editable install hold the same commands; none replaces
another project's files.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import bench
from tests.bench.commands import keep_ceilings

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("bench", "kernels", "roofline", "results")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DIST_INFO = f"roofmark-{bench.__version__}.dist-info/"
TOP_LEVEL = {"roofmark", "roofmark_home", "roofmark_pytest.py", "roofmark.pth"}
"""Everything that a wheel puts into site-packages, besides its metadata."""


def python(*arguments, cwd, path=(), executable=sys.executable, **environment):
    """Run Python in a separate process, with `path` before everything installed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), **environment}
    return subprocess.run(
        [executable, *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
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


def test_a_foreign_kernels_package_is_a_one_line_error(foreign, elsewhere):
    done = python("-m", "bench.matmul", "--help", cwd=elsewhere, path=(foreign, ROOT))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("bench: 'kernels' would be imported from ")
    assert str(foreign) in done.stderr


def test_in_the_repository_our_packages_come_first(foreign):
    done = python("-m", "bench.matmul", "--help", cwd=ROOT, path=(foreign,))
    assert (done.returncode, done.stderr) == (0, "")


def build(kind, folder, source=ROOT):
    """Return the file that the build backend makes, as pip calls it."""
    pytest.importorskip(
        "hatchling", reason="the build backend is missing: pip install -e '.[test]'"
    )
    code = f"import sys, hatchling.build; print(hatchling.build.build_{kind}(sys.argv[1]))"
    done = python("-c", code, str(folder), cwd=source)
    assert done.returncode == 0, done.stderr
    return folder / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def fake_run():
    """Save a run in the clone, as users do before they build a wheel."""
    folder = ROOT / "results" / "runs" / "test-packaging"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "private.jsonl").write_text('{"host": "private"}\n')
    yield
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory, fake_run):
    return build("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory, fake_run):
    return build("sdist", tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def editable(tmp_path_factory):
    return build("editable", tmp_path_factory.mktemp("editable"))


@pytest.fixture(scope="module")
def site(tmp_path_factory, wheel):
    """Return a directory with the files of the wheel, as `pip install --target` makes it."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def names_in(archive):
    with zipfile.ZipFile(archive) as opened:
        return set(opened.namelist())


def test_a_wheel_puts_only_files_of_unique_names_into_site_packages(wheel):
    names = {name for name in names_in(wheel) if not name.startswith(DIST_INFO)}
    assert {name.partition("/")[0] for name in names} == TOP_LEVEL


def test_a_wheel_has_the_code_and_no_runs_tests_or_caches(wheel):
    names = {name for name in names_in(wheel) if name.startswith("roofmark_home/")}
    of_git = subprocess.run(
        ["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    left_out = ("bench/installed/", "results/published/")
    expected = {name for name in of_git if not name.startswith(left_out)}
    assert {name.removeprefix("roofmark_home/") for name in names} == expected


def test_a_wheel_from_the_source_distribution_is_the_same(wheel, sdist, tmp_path):
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    assert names_in(build("wheel", tmp_path, source)) == names_in(wheel)


def test_a_source_distribution_has_the_tests_and_no_runs(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "tests/conftest.py"} <= names
    assert {
        "bench/matmul.py",
        "roofline/gpus/h100-sxm.toml",
        "bench/installed/roofmark.pth",
    } <= names
    assert not [name for name in names if "runs/" in name or name.endswith(".pyc")]


def test_entry_points_name_installed_modules(wheel):
    with zipfile.ZipFile(wheel) as archive:
        lines = archive.read(f"{DIST_INFO}entry_points.txt").decode().split("\n")
    assert "roofmark = roofmark.command:main" in lines
    assert "roofmark = roofmark_pytest" in lines


@pytest.mark.exhaustive
def test_metadata_passes_twine(wheel, sdist):
    done = python("-m", "twine", "check", "--strict", wheel, sdist, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_editable_install_is_found_from_anywhere(editable, tmp_path, elsewhere):
    folder = tmp_path / "site"
    with zipfile.ZipFile(editable) as archive:
        archive.extractall(folder)
    code = (
        f"import site; site.addsitedir({str(folder)!r}); import bench, kernels, roofline, results; "
        "print(*[module.__file__ for module in (bench, kernels, roofline, results)], sep='\\n'); "
        "import roofmark; print(roofmark.__version__)"
    )
    done = python("-S", "-c", code, cwd=elsewhere)
    assert done.stderr == ""
    files = [str(ROOT / package / "__init__.py") for package in PACKAGES]
    assert done.stdout.splitlines() == [*files, bench.__version__]


def test_pth_puts_the_packages_of_a_wheel_on_the_path(site, elsewhere):
    code = (
        f"import site; site.addsitedir({str(site)!r}); import bench, kernels, roofline, results; "
        "print(*[module.__file__ for module in (bench, kernels, roofline, results)], sep='\\n')"
    )
    done = python("-S", "-c", code, cwd=elsewhere)
    assert done.stderr == ""
    home = site / "roofmark_home"
    assert done.stdout.splitlines() == [str(home / name / "__init__.py") for name in PACKAGES]


def in_site(site, *arguments, cwd, path=(), **environment):
    """Run Python with the files of the wheel, without `.pth` files and so without this clone."""
    packages = sysconfig.get_path("purelib")
    return python("-S", *arguments, cwd=cwd, path=(*path, site, packages), **environment)


def test_roofmark_finds_its_packages_without_pth(site, elsewhere):
    code = "import roofmark, bench; print(bench.__file__, roofmark.attainable('h100-sxm', 1, 1))"
    done = in_site(site, "-c", code, cwd=elsewhere)
    assert (done.returncode, done.stderr) == (0, "")
    assert str(site / "roofmark_home" / "bench") in done.stdout


def test_roofmark_names_a_foreign_package_of_the_same_name(site, elsewhere):
    (elsewhere / "results").mkdir()
    (elsewhere / "results" / "__init__.py").touch()
    done = in_site(site, "-m", "roofmark", "gpus", cwd=elsewhere, path=(elsewhere,))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"'results' would be imported from {elsewhere}" in done.stderr
    done = in_site(site, "-c", "import roofmark", cwd=elsewhere, path=(elsewhere,))
    assert "ImportError: roofmark: 'results'" in done.stderr


def test_an_archive_on_the_path_is_refused_in_one_line(wheel, elsewhere):
    done = in_site(wheel, "-m", "roofmark", "gpus", cwd=elsewhere)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    said = "roofmark_home is in an archive, but the data files must be in a directory"
    assert said in done.stderr


def test_a_wheel_saves_runs_in_the_data_directory_of_the_user(site, elsewhere):
    code = "import roofmark, results.store.runfile as runs; print(runs.runs_directory())"
    data = elsewhere / "data"
    done = in_site(site, "-c", code, cwd=elsewhere, ROOFMARK_RUNS="", XDG_DATA_HOME=str(data))
    assert done.stdout.strip() == str(data / "roofmark" / "runs")
    done = in_site(site, "-c", code, cwd=elsewhere, ROOFMARK_RUNS=str(elsewhere))
    assert done.stdout.strip() == str(elsewhere)


COMMANDS = {
    "roofmark --version": f"roofmark {bench.__version__}",
    "roofmark gpus h100-sxm": "NVIDIA H100 SXM5",
    "roofmark estimate params --model gpt2": "124",
    "roofmark plot --gpu h100-sxm -o h100.png": "",
    "roofmark list": "bench.matmul",
    "roofmark kernels": "matmul",
    "python -m bench list": "bench.matmul",
    "python -m roofline gpus": "h100-sxm",
    "python -m results list": "",
    "python -c 'import roofmark; roofmark.measure, roofmark.load'": "",
}
"""Commands that need no torch, and a text that they print."""

MEASURING = {
    "roofmark matmul --dtype fp32 --shape 64 --budget 2": "saved: ",
    "python -m bench.matmul --dtype fp32 --shape 64 --budget 2": "saved: ",
    "roofmark show latest": "python -m bench.matmul --dtype fp32",
    "roofmark compare latest --by provider": "no other provider",
}
NEEDS_TORCH = "this command needs torch: "


@pytest.mark.exhaustive
def test_a_wheel_works_in_a_fresh_environment(wheel, elsewhere, tmp_path):
    """Without torch, then with it, then beside another distribution's `kernels`."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    install = [venv / "bin" / "pip", "install", "--quiet", "--no-compile", wheel]
    subprocess.run(install, cwd=elsewhere, check=True, timeout=600)
    environment = {**os.environ, "PATH": f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    environment |= {"XDG_DATA_HOME": str(tmp_path / "data"), "PYTHONPATH": ""}
    environment.pop("ROOFMARK_RUNS", None)

    def run(command):
        return subprocess.run(
            command,
            shell=True,
            cwd=elsewhere,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    for command, text in COMMANDS.items():
        done = run(command)
        assert done.returncode == 0, (command, done.stderr)
        assert text in done.stdout, (command, done.stdout)
    for command in ("roofmark matmul", "python -m bench.matmul", "roofmark calibrate"):
        done = run(command)
        assert done.returncode == 2, done.stderr
        assert NEEDS_TORCH in done.stderr
        assert str(venv) in done.stderr
        assert done.stderr.count("\n") == 1
    (packages,) = (venv / "lib").glob("python*/site-packages")
    import torch

    (packages / "torch-of-the-tests.pth").write_text(str(Path(torch.__file__).parents[1]))
    keep_ceilings(tmp_path / "data" / "roofmark" / "runs")
    for command, text in MEASURING.items():
        done = run(command)
        assert text in done.stdout + done.stderr, (command, done.stdout, done.stderr)
    assert list((tmp_path / "data" / "roofmark" / "runs").rglob("*.jsonl"))
    assert not (packages / "roofmark_home" / "results" / "runs").exists()
    (packages / "kernels").mkdir()
    (packages / "kernels" / "__init__.py").touch()
    for command in ("roofmark gpus", "python -m bench list"):
        done = run(command)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), (command, done.stderr)
    uninstall = [venv / "bin" / "pip", "uninstall", "--quiet", "-y", "roofmark"]
    subprocess.run(uninstall, cwd=elsewhere, check=True, timeout=120)
    assert (packages / "kernels" / "__init__.py").is_file()
    assert not list((packages / "roofmark_home").rglob("*.py"))


def test_the_core_does_not_require_torch():
    names = {Requirement(text).name for text in PROJECT["dependencies"]}
    extras = {Requirement(text).name for text in PROJECT["optional-dependencies"]["bench"]}
    assert extras == {"torch", "triton"}
    assert not names & (extras | {"pyarrow", "plotly", "streamlit", "transformers", "pytest"})


@pytest.mark.parametrize(
    ("system", "left_out"),
    [("linux", set()), ("win32", {"triton"}), ("darwin", {"triton", "nvidia-ml-py"})],
)
def test_dependencies_without_a_wheel_are_not_required(system, left_out):
    texts = PROJECT["dependencies"] + PROJECT["optional-dependencies"]["bench"]
    needed = [Requirement(text) for text in texts]
    skipped = {
        requirement.name
        for requirement in needed
        if requirement.marker and not requirement.marker.evaluate({"sys_platform": system})
    }
    assert skipped == left_out
