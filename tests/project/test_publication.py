"""What is published is ready: one version everywhere, whole metadata, and a workflow that only a person starts."""

import json
import re
import tomllib
from pathlib import Path

import loaderkit as lk

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PUBLISH = (ROOT / ".github" / "workflows" / "publish.yml").read_text()
TEST = (ROOT / ".github" / "workflows" / "test.yml").read_text()
PACKAGE = (ROOT / ".ci" / "package").read_text()


def test_the_version_is_the_same_everywhere() -> None:
    """The workflow compares it with the tag before it builds."""
    versions = re.findall(r"^## \[(\d[^]]*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == PROJECT["version"] == lk.__version__
    assert re.search(r'^version = "\d+\.\d+\.\d+"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert 'test "$GITHUB_REF" = "refs/tags/v$(sed' in PUBLISH


def test_a_person_starts_the_publication_and_no_secret_is_needed() -> None:
    triggers = PUBLISH.split("\non:\n", 1)[1].split("\npermissions:", 1)[0]
    assert triggers.strip() == "workflow_dispatch:"
    assert "id-token: write" in PUBLISH
    assert "environment: pypi" in PUBLISH
    assert "secrets." not in PUBLISH


def test_what_is_published_was_built_checked_and_run() -> None:
    for workflow in (PUBLISH, TEST):
        assert "run: PYTHON=python .ci/package" in workflow
    for step in ("-m build --outdir dist", 'twine" check --strict', "install --quiet dist/*.whl", "quickstart_"):
        assert step in PACKAGE


def test_an_index_shows_what_a_reader_looks_for() -> None:
    assert PROJECT["readme"] == "README.md"
    assert PROJECT["license"] == "Apache-2.0"
    assert any(classifier.startswith("Operating System :: POSIX :: Linux") for classifier in PROJECT["classifiers"])
    versions = [each.rpartition(" ")[2] for each in PROJECT["classifiers"] if "Python :: 3." in each]
    assert versions == ["3.11", "3.12", "3.13", "3.14"]
    assert f"python: {json.dumps(versions)}" in TEST  # each is tested
    assert PROJECT["requires-python"] == f">={versions[0]}"  # and newer ones are not refused
