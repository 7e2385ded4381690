"""The house: the license, pinned tools, and what a wheel contains."""

import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile

import pytest
import tomllib
from repository import ONE_ITERATION, PACKAGE, ROOT, read, run

FILES = sorted(PACKAGE.rglob("*.py"))


def test_the_license_is_complete_and_is_the_one_declared():
    text = read("LICENSE")
    for part in ("Apache License", "9. Accepting Warranty", "END OF TERMS", "The rlzoo authors"):
        assert part in text
    project = tomllib.loads(read("pyproject.toml"))["project"]
    assert project["license"] == "Apache-2.0"
    assert project["license-files"] == ["LICENSE"]


def test_tools_have_one_version():
    pins = dict(re.findall(r"^([\w-]+)==(\S+)$", read("constraints.txt"), re.M))
    hook = re.search(r"ruff-pre-commit\n\s+rev: v(\S+)", read(".pre-commit-config.yaml"))
    assert hook[1] == pins["ruff"]


def test_every_direct_dependency_is_pinned():
    project = tomllib.loads(read("pyproject.toml"))["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    wanted = {re.match(r"[\w-]+", line)[0].lower() for lines in lists for line in lines}
    pinned = re.findall(r"^([\w-]+)==", read("constraints.txt"), re.M)
    assert wanted - {"rlzoo-lightning"} <= set(pinned)


def test_constraints_name_no_index():
    lines = read("constraints.txt").splitlines()
    assert all(re.fullmatch(r"#.*|[\w-]+==[\w.]+|", line) for line in lines)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build a wheel from what belongs in it, outside the checkout."""
    source = tmp_path_factory.mktemp("source")
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    shutil.copytree(PACKAGE, source / "rlzoo", ignore=shutil.ignore_patterns("__pycache__"))
    for folder in ("tests", "benchmarks", "configs", "docs"):  # what must stay out
        (source / folder).mkdir()
        (source / folder / "__init__.py").touch()
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    run([*command, "--wheel-dir", source / "dist", source], source)
    [built] = (source / "dist").glob("*.whl")
    return built


def test_a_wheel_contains_the_package_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {entry.split("/")[0] for entry in names} == {
        "rlzoo",
        "rlzoo_lightning-0.1.0.dist-info",
    }
    assert "rlzoo/py.typed" in names
    assert any(entry.endswith("/LICENSE") for entry in names)
    modules = {path.relative_to(ROOT).as_posix() for path in FILES}
    assert modules == {entry for entry in names if entry.endswith(".py")}


@pytest.mark.slow
def test_an_installed_wheel_trains_from_another_folder(wheel, tmp_path):
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python]
    run([*pip, "install", "--no-deps", "--no-index", wheel], tmp_path)
    # Its dependencies are those of this interpreter; a path file does not follow editable installs.
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = subprocess.check_output([python, "-c", ask], text=True).strip()
    dependencies = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    with open(f"{site}/dependencies.pth", "w", encoding="utf-8") as file:
        file.write("\n".join(dependencies) + "\n")
    work = tmp_path / "work"
    work.mkdir()
    alone = {"PYTHONPATH": ""}  # or a checkout on it would be found first
    where = run([python, "-c", "import rlzoo; print(rlzoo.__file__)"], work, **alone)
    assert where.startswith(site)
    shutil.copy(ROOT / "configs" / "quickstart.yaml", work)
    rlzoo = tmp_path / "venv" / "bin" / "rlzoo"
    run([rlzoo, "fit", "--config", "quickstart.yaml", *ONE_ITERATION], work, **alone)
    [summary] = work.glob("runs/quickstart/*/summary.json")
    assert '"iterations": 1' in summary.read_text(encoding="utf-8")
