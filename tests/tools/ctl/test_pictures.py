"""The pictures in docs/tools: made alike each time, with readable text. `make pages` writes them."""

from __future__ import annotations

import pytest

from tests.tools.ctl.pictures import DIRECTORY, PICTURES, picture, shown_text


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_made_alike_each_time_and_loads_nothing(name: str) -> None:
    made = picture(name)
    assert made == picture(name)
    assert "url(http" not in made
    assert made.count("http") == made.count('xmlns="http://www.w3.org/2000/svg"')


def test_there_is_no_picture_of_anything_else() -> None:
    assert sorted(path.name for path in DIRECTORY.iterdir()) == sorted(f"{name}.svg" for name in PICTURES)


def test_the_text_of_a_picture_is_read() -> None:
    lines = shown_text(picture("topics"))
    assert lines[0] == "$pyqctltopics"
    assert "orders_dead20340003427.0KiB" in lines
