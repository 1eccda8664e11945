import pytest
from greenlet import getcurrent, greenlet

from pyqd.hot.net.native_stack import call_at_root


def test_the_outermost_function_gets_its_arguments_and_gives_its_result() -> None:
    assert call_at_root(divmod, 17, 5) == (3, 2)


def test_an_exception_of_the_outermost_function_propagates() -> None:
    with pytest.raises(ZeroDivisionError):
        call_at_root(divmod, 17, 0)


def test_an_outermost_function_may_switch_and_continue() -> None:
    def steps() -> int:
        parent = getcurrent().parent
        assert parent is not None
        return int(parent.switch(1)) + 1

    started = greenlet(call_at_root)
    assert started.switch(steps) == 1
    assert started.switch(41) == 42
