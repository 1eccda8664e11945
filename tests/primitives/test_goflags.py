"""The syntax of Go's flags. Expected outcomes were found with Go's flag package."""

import dataclasses

import pytest

from pyqd.primitives import goflags
from pyqd.primitives.goflags import DURATION, INT, FlagError, HelpRequested, declare_field


@dataclasses.dataclass
class Example:
    yes: bool = declare_field(False, "a boolean")
    node_id: int = declare_field(5, "an integer", key="id", minimum=0, maximum=9)
    pause_ns: int = declare_field(60_000_000_000, "a duration", kind=DURATION)
    name: str = declare_field('a"b', "a string")
    peer: tuple[str, ...] = declare_field((), "a list", key=None)
    zero: int = declare_field(0, "nothing")
    other: str = "not a flag"


FLAGS = goflags.declared_flags(Example)


@pytest.mark.parametrize(
    ("argv", "values"),
    [
        ([], {}),
        (["-name=x"], {"name": "x"}),
        (["--name=x"], {"name": "x"}),
        (["-name", "x"], {"name": "x"}),
        (["--name", "x"], {"name": "x"}),
        (["-name="], {"name": ""}),
        (["-name=a=b"], {"name": "a=b"}),
        (["-name", "-yes"], {"name": "-yes"}),
        (["-name", "--"], {"name": "--"}),
        (["-zero", "-5"], {"zero": -5}),
        (["-zero=0x1F"], {"zero": 31}),
        (["-yes"], {"yes": True}),
        (["-yes=f"], {"yes": False}),
        (["-pause=1.5s"], {"pause": 1_500_000_000}),
        (["-zero=1", "-zero=2"], {"zero": 2}),
        (["-peer=a,b", "--peer", "c"], {"peer": ("a,b", "c")}),
    ],
)
def test_values_are_those_go_would_set(argv: list[str], values: dict[str, object]) -> None:
    parsed = goflags.parse(FLAGS, argv)
    assert parsed.values == values
    assert parsed.leftovers == ()


@pytest.mark.parametrize(
    ("argv", "leftovers"),
    [
        (["-yes", "false", "-name=x"], ("false", "-name=x")),
        (["--", "-name=x"], ("-name=x",)),
        (["-", "-name=x"], ("-", "-name=x")),
        (["", "-yes"], ("", "-yes")),
    ],
)
def test_the_first_argument_that_is_no_flag_ends_the_flags(argv: list[str], leftovers: tuple[str, ...]) -> None:
    assert goflags.parse(FLAGS, argv).leftovers == leftovers


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["-x"], "flag provided but not defined: -x"),
        (["--x=5"], "flag provided but not defined: -x"),
        (["-nam=x"], "flag provided but not defined: -nam; did you mean --name?"),
        (["-Node_Id=x"], "flag provided but not defined: -Node_Id; did you mean --node-id?"),
        (["-name"], "flag needs an argument: -name"),
        (["---name"], "bad flag syntax: ---name"),
        (["-=5"], "bad flag syntax: -=5"),
        (
            ["-pause", "1h5"],
            'invalid value "1h5" for flag -pause: missing unit in duration "1h5"; write 1h5s, 1h5ms or 1h5m',
        ),
        (
            ["-pause=1d"],
            'invalid value "1d" for flag -pause: unknown unit "d" in duration "1d"; '
            "the units are ns, us, ms, s, m and h",
        ),
        (
            ["-pause="],
            'invalid value "" for flag -pause: invalid duration ""; durations are written as 250ms, 1.5s or 1h30m',
        ),
        (["-zero=a\n"], 'invalid value "a\\n" for flag -zero: not a whole number'),
        (
            ["-zero=1MB"],
            'invalid value "1MB" for flag -zero: not a whole number; write it without a unit, 1 MiB as 1048576',
        ),
        (["-zero=9223372036854775808"], 'invalid value "9223372036854775808" for flag -zero: value out of range'),
        (["-yes=5"], 'invalid boolean value "5" for -yes: must be true or false'),
        (["-yes="], 'invalid boolean value "" for -yes: must be true or false'),
    ],
)
def test_a_mistake_is_reported_in_go_s_words_with_a_remedy(argv: list[str], text: str) -> None:
    with pytest.raises(FlagError) as caught:
        goflags.parse(FLAGS, argv)
    assert str(caught.value) == text


@pytest.mark.parametrize("argument", ["-h", "--h", "-help", "--help", "--help=1"])
def test_help_is_no_mistake(argument: str) -> None:
    with pytest.raises(HelpRequested):
        goflags.parse(FLAGS, [argument, "-x"])


def test_the_usage_text_lists_the_flags_by_name_with_their_defaults() -> None:
    assert goflags.usage("prog", FLAGS) == (
        "Usage of prog:\n"
        '  --name string\n        a string (default "a\\"b")\n'
        "  --node-id int\n        an integer (default 5)\n"
        "  --pause duration\n        a duration (default 1m0s)\n"
        "  --peer value\n        a list\n"
        "  --yes\n        a boolean\n"
        "  --zero int\n        nothing\n"
    )


def test_flags_of_groups_stand_under_their_headings_in_the_order_of_declaration() -> None:
    @dataclasses.dataclass
    class Grouped:
        zebra: int = declare_field(0, "last letter")
        ape: int = declare_field(7, "first letter", default_text="seven")
        bee: bool = declare_field(False, "an insect")

    flags = goflags.declared_flags(Grouped, {"zebra": "Mammals", "bee": "Others"})
    assert goflags.usage("prog", flags) == (
        "Usage of prog:\n\nMammals:\n"
        "  --zebra int\n        last letter\n"
        "  --ape int\n        first letter (default seven)\n"
        "\nOthers:\n"
        "  --bee\n        an insect\n"
    )
    with pytest.raises(ValueError, match="no flag cow"):
        goflags.declared_flags(Grouped, {"cow": "Mammals"})


@pytest.mark.parametrize("width", [60, 100])
def test_the_usage_text_keeps_to_its_width(width: int) -> None:
    flag = goflags.Flag("f", "f", INT, 0, "word " * 50, "f")
    lines = goflags.usage("prog", [flag], width).splitlines()
    assert max(map(len, lines)) <= width
    assert " ".join(lines[2:]).split() == ["word"] * 50


def test_usage_goes_to_stdout_and_the_process_ends(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        goflags.parse_or_exit("prog", FLAGS, ["-yes", "-h"], "prog [flags]\n")
    assert caught.value.code == 0
    assert capsys.readouterr() == ("prog [flags]\n\n" + goflags.usage("prog", FLAGS), "")


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["-nme=x"], "flag provided but not defined: -nme; did you mean --name?"),
        (["x"], 'unexpected argument "x"'),
        (["-zero=1", "", "-yes"], 'unexpected argument ""'),
        (["-zero", "1", "x"], 'unexpected argument "x"'),
        (["--", "-yes"], 'unexpected argument "-yes"'),
        (
            ["-yes", "false", "-zero=1"],
            'unexpected argument "false"; the value of a boolean flag comes after =, as in --yes=false',
        ),
    ],
)
def test_a_mistake_is_the_one_line_on_stderr_and_the_process_ends(
    argv: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        goflags.parse_or_exit("prog", FLAGS, argv)
    assert caught.value.code == 2
    assert capsys.readouterr() == ("", f"prog: {text} (prog --help lists all flags)\n")


def test_a_key_is_the_name_with_underscores_unless_declared_otherwise() -> None:
    assert {flag.name: flag.config_key for flag in FLAGS} == {
        "yes": "yes",
        "node-id": "id",
        "pause": "pause",
        "name": "name",
        "peer": None,
        "zero": "zero",
    }


def test_the_fields_of_the_class_have_the_defaults_of_the_flags() -> None:
    assert all(getattr(Example(), flag.attribute) == flag.default_value() for flag in FLAGS)


def test_a_flag_may_be_declared_once_only() -> None:
    @dataclasses.dataclass
    class Twice:
        same: int = declare_field(0, "")
        same_ns: int = declare_field(0, "")

    with pytest.raises(ValueError, match="declared twice"):
        goflags.declared_flags(Twice)


@pytest.mark.parametrize(
    ("minimum", "maximum", "value", "text"),
    [
        (0, 9, 10, "--f must be [0,9]"),
        (0, 9, -1, "--f must be [0,9]"),
        (0, None, -1, "--f must not be negative"),
        (1, None, 0, "--f must be positive"),
        (4, None, 3, "--f must be at least 4"),
        (None, 9, 10, "--f must be at most 9"),
    ],
)
def test_a_value_out_of_range_is_reported_with_the_range(
    minimum: int | None, maximum: int | None, value: int, text: str
) -> None:
    flag = goflags.Flag("f", "f", INT, 0, "", "f", minimum=minimum, maximum=maximum)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is compared whole
        flag.check(value)
    assert str(caught.value) == text


def test_the_bounds_themselves_are_in_range() -> None:
    flag = goflags.Flag("f", "f", INT, 0, "", "f", minimum=0, maximum=9)
    flag.check(0)
    flag.check(9)
