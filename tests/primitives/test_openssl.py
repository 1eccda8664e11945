"""Tests of pyqd.primitives.openssl."""

import subprocess
import sys

import pytest

from pyqd.primitives import openssl
from tests.support.server import REPOSITORY


def loaded_after(statement: str) -> bool:
    """Return whether pyOpenSSL is loaded in an interpreter that has carried out a statement."""
    code = f"import sys\n{statement}\nprint('OpenSSL.SSL' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return done.stdout == "True\n"


@pytest.mark.slow
@pytest.mark.parametrize("module", ["daemon", "lookupd"])
def test_a_program_without_tls_does_not_load_it(module: str) -> None:
    assert not loaded_after(f"import pyqd.apps.{module}")


@pytest.mark.slow
def test_the_first_attribute_loads_it() -> None:
    assert loaded_after("from pyqd.primitives.openssl import SSL\nSSL.Error")
    assert issubclass(openssl.SSL.WantReadError, openssl.SSL.Error)


def test_a_name_that_it_does_not_have_is_an_error() -> None:
    with pytest.raises(AttributeError, match="Nonsense"):
        _ = openssl.SSL.Nonsense  # type: ignore[attr-defined]
