"""A session made by pyqd, and the registration of its formats: automatic if possible, by one call everywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException

import pyqd_spark
from pyqd_spark.session import formats
from tests.support.server import REPOSITORY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Each test takes long, by itself or with the programs that it starts.
pytestmark = pytest.mark.slow


def import_with(directory: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run code in an interpreter that finds pyspark_pyqd, and `directory` before everything else."""
    path = os.pathsep.join([str(directory), str(REPOSITORY / "spark"), str(REPOSITORY)])
    command = [sys.executable, "-W", "error", "-c", code]
    environment = os.environ | {"PYTHONPATH": path}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    "broken", ["raise ImportError('no such thing')", "raise RuntimeError('what?')", "1 / 0", "def broken(:"]
)
def test_the_module_that_spark_imports_by_its_name_does_not_fail_whatever_is_wrong(tmp_path: Path, broken: str) -> None:
    (tmp_path / "pyqd_spark").mkdir()
    (tmp_path / "pyqd_spark" / "__init__.py").write_text(broken + "\n")
    result = import_with(tmp_path, "import pyspark_pyqd; print(hasattr(pyspark_pyqd, 'DefaultSource'))")
    assert result.returncode == 0, result.stderr
    assert result.stdout == "False\n"
    assert 'format("pyqd") is not available' in result.stderr


def test_the_module_that_spark_imports_by_its_name_offers_the_format_pyqd(tmp_path: Path) -> None:
    code = "import json, pyspark_pyqd; print(json.dumps([pyspark_pyqd.DefaultSource.name()]))"
    result = import_with(tmp_path, code)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == ["pyqd"]
    assert result.stderr == ""


def test_importing_the_package_imports_neither_pyspark_nor_arrow(tmp_path: Path) -> None:
    code = "import sys, pyqd_spark; print([name for name in ('pyspark', 'pyarrow', 'gevent') if name in sys.modules])"
    result = import_with(tmp_path, code)
    assert (result.stdout, result.stderr) == ("[]\n", "")


def test_every_format_has_a_name_of_its_own() -> None:
    assert [source.name() for source in formats()] == ["pyqd", "pyqd-channel"]


def test_registering_again_changes_nothing(spark: SparkSession) -> None:
    pyqd_spark.register(spark)
    pyqd_spark.register(spark)
    for source in formats():
        # Known, so it is the options that are at fault.
        with pytest.raises(AnalysisException, match="OptionError"):
            spark.read.format(source.name()).load().collect()


@pytest.mark.skipif(" " in sys.executable, reason="Spark looks for this interpreter by a shell command without quotes")
def test_a_session_in_which_nothing_was_registered_finds_the_format(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException, match="OptionError"):
        spark.newSession().read.format("pyqd").load().collect()


def test_tasks_run_in_the_interpreter_of_the_driver(spark: SparkSession) -> None:
    def executable(_: object) -> list[str]:
        import sys

        return [sys.executable]

    assert spark.sparkContext.parallelize([0], 1).mapPartitions(executable).collect() == [sys.executable]


def test_tasks_import_the_packages_under_test(spark: SparkSession) -> None:
    def origin(_: object) -> list[str]:
        import pyqd_spark

        return [str(pyqd_spark.__file__)]

    assert spark.sparkContext.parallelize([0], 1).mapPartitions(origin).collect() == [pyqd_spark.__file__]


def test_a_session_that_runs_is_taken_again(spark: SparkSession) -> None:
    assert pyqd_spark.session("another").sparkContext is spark.sparkContext
