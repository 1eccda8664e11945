"""The zip for executors: imported by an interpreter that has nothing but it, and beside an installed pyqd."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import pyqd
from pyqd_spark import shipping

# Each test takes long, by itself or with the programs that it starts.
pytestmark = pytest.mark.slow

PURE = ("primitives", "fallback", "client")


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shipping.build_zip(tmp_path_factory.mktemp("zip") / "pyqd.zip")


def ask(archive: Path, code: str, *behind: Path) -> object:
    """Run code in which our packages exist only in the zip and these directories. Returns: its output, as JSON."""
    # Isolated and without site: no PYTHONPATH, no current directory, no packages.
    start = f"import json, sys; sys.path[:0] = {[str(archive), *map(str, behind)]!r}\n"
    command = [sys.executable, "-I", "-S", "-c", start + code]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def make_installed(directory: Path, version: str) -> Path:
    """Make the likeness of an installed pyqd with one module that stands for a compiled one."""
    package = directory / "pyqd"
    (package / "hot" / "primitives").mkdir(parents=True)
    (package / "__init__.py").write_text(f'__version__ = "{version}"\n')
    (package / "hot" / "__init__.py").touch()
    (package / "hot" / "primitives" / "__init__.py").touch()
    (package / "hot" / "primitives" / "crc32c.py").write_text("compiled = True\n")
    return directory


def test_the_packages_for_spark_are_imported_from_the_zip_alone(archive: Path) -> None:
    code = "import pyqd, pyqd_spark; print(json.dumps([pyqd.__version__, pyqd_spark.__file__]))"
    assert ask(archive, code) == [pyqd.__version__, f"{archive}/pyqd_spark/__init__.py"]


def test_the_clients_of_brokers_need_nothing_but_the_zip(archive: Path) -> None:
    code = (
        "from pyqd_spark.brokers import BrokerClient\nfrom pyqd_spark.nsq_client import NsqClient\n"
        "print(json.dumps([sys.modules[kind.__module__].__file__ for kind in (BrokerClient, NsqClient)]))"
    )
    assert ask(archive, code) == [f"{archive}/pyqd_spark/{name}.py" for name in ("brokers", "nsq_client")]


def test_the_zip_holds_the_layers_that_both_ends_share_and_no_others(archive: Path) -> None:
    names = [name.split("/") for name in zipfile.ZipFile(archive).namelist()]
    assert {parts[0] for parts in names} == {"pyqd", "pyqd_spark", "pyspark_pyqd"}
    assert {parts[1] for parts in names if parts[0] == "pyqd"} == {"__init__.py", "hot", *PURE}
    assert all(parts[-1].endswith(".py") or "templates" in parts for parts in names)


def test_a_template_is_read_from_the_zip(archive: Path) -> None:
    code = (
        "from jinja2 import PackageLoader\n"
        "print(json.dumps([PackageLoader('pyqd_spark.jobs').list_templates(), sys.modules['pyqd_spark'].__file__]))"
    )
    shown = ask(archive, code, Path(sysconfig.get_path("purelib")))
    assert shown == [["profile.html"], f"{archive}/pyqd_spark/__init__.py"]


def test_a_missing_compiled_module_is_an_import_error(archive: Path) -> None:
    code = "try:\n    import pyqd.hot.primitives.crc32c\nexcept ImportError:\n    print(json.dumps('absent'))"
    assert ask(archive, code) == "absent"


def test_an_installed_compiled_module_of_the_same_version_is_used(archive: Path, tmp_path: Path) -> None:
    code = "import pyqd; from pyqd.hot.primitives import crc32c; print(json.dumps([pyqd.__file__, crc32c.__file__]))"
    installed = make_installed(tmp_path, pyqd.__version__)
    assert ask(archive, code, installed) == [
        f"{archive}/pyqd/__init__.py",
        f"{installed}/pyqd/hot/primitives/crc32c.py",
    ]


def test_a_compiled_module_of_another_version_is_not_taken(archive: Path, tmp_path: Path) -> None:
    code = (
        "try:\n    from pyqd.hot.primitives import crc32c\nexcept ImportError:\n    print(json.dumps('none'))\n"
        "else:\n    print(json.dumps('taken'))"
    )
    assert ask(archive, code, make_installed(tmp_path, pyqd.__version__ + ".post1")) == "none"


def test_the_same_code_makes_the_same_bytes(archive: Path, tmp_path: Path) -> None:
    again = shipping.build_zip(tmp_path / "deep" / "again.zip")
    assert again.read_bytes() == archive.read_bytes()


def test_code_that_was_shipped_is_shipped_on_as_it_is(archive: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.zip"
    code = f"import pyqd_spark; print(json.dumps(str(pyqd_spark.build_zip({str(again)!r}))))"
    assert ask(archive, code) == str(again)
    assert again.read_bytes() == archive.read_bytes()


def test_an_older_zip_is_replaced_whole(archive: Path, tmp_path: Path) -> None:
    path = tmp_path / "pyqd.zip"
    path.write_bytes(b"an older one")
    assert shipping.build_zip(path) == path
    assert path.read_bytes() == archive.read_bytes()
    assert os.listdir(tmp_path) == ["pyqd.zip"]
