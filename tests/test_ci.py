"""The workflow runs `.ci/run` with the oldest and the newest versions; the release files agree."""

import re
import tomllib
from pathlib import Path

import yaml
from packaging.specifiers import SpecifierSet

import bench

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_workflow_runs_ci_with_the_oldest_and_a_newer_version():
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    (job,) = workflow["jobs"].values()
    cells = job["strategy"]["matrix"]["include"]
    run = next(step for step in job["steps"] if step.get("run") == "bash .ci/run")
    assert run["env"]["TORCH"] == "${{ matrix.torch }}"
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    assert re.findall(r"\$\{(\w+):-", script) == ["PYTHON", "TORCH"]
    requirement = next(
        text for text in PROJECT["optional-dependencies"]["bench"] if text.startswith("torch")
    )
    versions = SpecifierSet(requirement.removeprefix("torch"))
    torch_versions = [cell["torch"] for cell in cells]
    assert all(versions.contains(version) for version in torch_versions)
    assert torch_versions[0] == f"{requirement.partition('>=')[2]}.0"
    assert cells[0]["python"] == PROJECT["requires-python"].removeprefix(">=")


def test_the_version_has_an_entry_in_the_changelog_and_the_citation():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    release = bench.__version__.partition(".dev")[0]
    assert re.search(rf"^## {re.escape(release)}\b", changelog, re.MULTILINE)
    assert citation["version"] == bench.__version__


def test_every_test_of_the_contributing_page_exists():
    page = (ROOT / ".github/CONTRIBUTING.md").read_text(encoding="utf-8")
    paths = re.findall(r"tests/[\w/.]+", page)
    assert paths
    assert all((ROOT / path).exists() for path in paths)
