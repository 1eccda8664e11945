"""Pages of settings that change while brokers run: limits of a channel; retention, quota and trace of a topic.

Source: docs/http.md, "Limits of a channel"; docs/space.md, "Settings of one topic"; docs/trace.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from flask import Blueprint, flash, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from pyqd.admin.access.roles import UserRole
from pyqd.admin.notifications import failed
from pyqd.admin.pages.forms import SiteViews, blueprint, tell_failures
from pyqd.admin.pages.language import translate as _
from pyqd.admin.shapes import ANY, NUMBER, OPTIONAL_NUMBER, OPTIONAL_TEXT, Shape, answer_of, check_shape
from pyqd.admin.site import Site
from pyqd.admin.upstream import AbsentCallError, UpstreamError
from pyqd.primitives.quantities import parse_size

LIMIT_FIELDS: Final = ("rate", "burst", "max_attempts", "dead_letter_topic")
# Fields of the form by the last part of the call's path.
TOPIC_FIELDS: Final = {"retention": ("bytes", "time"), "quota": ("bytes",), "trace": ("rate", "body_bytes")}
DEPENDENT_LIMITS: Final = {"rate": "burst", "max_attempts": "dead_letter_topic"}
DEFAULT: Final = "default"
# Fields that the pages show.
SHAPES: Final[Mapping[str, Shape]] = {
    "/channel/limits": {
        "rate": OPTIONAL_NUMBER,
        "burst": OPTIONAL_NUMBER,
        "max_attempts": OPTIONAL_NUMBER,
        "dead_letter_count": (int,),
        "dead_letters_waiting": (int,),
        "waiting_for": OPTIONAL_TEXT,
        "dead_letter_topic": OPTIONAL_TEXT,
    },
    "/topic/retention": {
        "bytes": OPTIONAL_NUMBER,
        "time": (str,),
        "own_bytes": OPTIONAL_NUMBER,
        "own_time": OPTIONAL_TEXT,
    },
    "/topic/quota": {"bytes": OPTIONAL_NUMBER, "used": NUMBER, "own_bytes": OPTIONAL_NUMBER, "refused": ANY},
    "/topic/trace": {"traced": (bool,), "rate": NUMBER, "body_bytes": OPTIONAL_NUMBER, "own": ANY},
}


def settings(site: Site) -> Blueprint:
    views = SettingsViews(site)
    channel, topic = "/topics/<topic>/<channel>/limits", "/topics/<topic>/-/settings"
    return blueprint(
        "settings",
        {channel: views.channel, topic: views.topic},
        {channel: views.set_channel, topic: views.set_topic},
    )


class SettingsViews(SiteViews):
    """Views of settings. The calls are pyqd's own: an nsqd answers them with NOT_FOUND."""

    def channel(self, topic: str, channel: str) -> str:
        self.site.require(UserRole.VIEW, topic)
        rows = self.of_nodes(topic, ("/channel/limits",), {"topic": topic, "channel": channel})
        now = agreed([answers[0] for _node, answers, _error in rows if answers], LIMIT_FIELDS)
        return render_template("limits.html", topic=topic, channel=channel, rows=rows, now=now)

    def set_channel(self, topic: str, channel: str) -> Response | str:
        """Set limits of a channel at all brokers."""
        self.site.require(UserRole.ADMIN, topic)
        given = given_fields(LIMIT_FIELDS)
        # The form has the present values too. A burst goes with the rate, and the topic with the limit of attempts.
        for limit, dependent in DEPENDENT_LIMITS.items():
            if is_zero(given.get(limit, "")):
                given.pop(dependent, None)
        if "dead_letter_topic" in given:
            # Messages will be published there.
            self.site.require(UserRole.ADMIN, given["dead_letter_topic"])
        here = url_for("settings.channel", topic=topic, channel=channel)
        return self.change("limit_channel", "/channel/limits", {"topic": topic, "channel": channel}, given, {}, here)

    def topic(self, topic: str) -> str:
        self.site.require(UserRole.VIEW, topic)
        paths = tuple(f"/topic/{name}" for name in TOPIC_FIELDS)
        rows = self.of_nodes(topic, paths, {"topic": topic})
        known = [answers for _node, answers, _error in rows if answers]
        own = {
            "retention": [{name: own_value(answers[0], name) for name in ("bytes", "time")} for answers in known],
            "quota": [{"bytes": own_value(answers[1], "bytes")} for answers in known],
            "trace": [trace_values(answers[2]) for answers in known],
        }
        now = {change: agreed(found, TOPIC_FIELDS[change]) for change, found in own.items()}
        return render_template("settings.html", topic=topic, rows=rows, now=now)

    def set_topic(self, topic: str) -> Response | str:
        """Set retention, quota or trace of a topic at all brokers."""
        self.site.require(UserRole.ADMIN, topic)
        change = request.form.get("change", "")
        given = given_fields(TOPIC_FIELDS.get(change, ()))
        here = url_for("settings.topic", topic=topic)
        return self.change(f"set_{change}", f"/topic/{change}", {"topic": topic}, given, {"change": change}, here)

    def of_nodes(self, topic: str, paths: tuple[str, ...], query: Mapping[str, str]) -> list[tuple[str, Any, str]]:
        """Return the address of each broker, its answers, and the error; no answer and no error for an nsqd."""
        rows: list[tuple[str, Any, str]] = []
        for node in self.nodes(topic):
            try:
                rows.append((node, [self.answer(node, path, query) for path in paths], ""))
            except AbsentCallError:
                rows.append((node, None, ""))
            except UpstreamError as error:
                rows.append((node, None, str(error)))
        if rows and not any(found or error for _node, found, error in rows):
            raise AbsentCallError("no broker of this topic is a pyqd")
        return rows

    def answer(self, node: str, path: str, query: Mapping[str, str]) -> Any:
        """Return the answer of a broker. Raises: UpstreamError, also for one of another form."""
        found = self.site.upstream.get(node, path, query)
        with answer_of(node, UpstreamError):
            check_shape(found, SHAPES[path])
        return found

    def change(
        self,
        action: str,
        path: str,
        place: Mapping[str, str],
        given: Mapping[str, str],
        fields: Mapping[str, str],
        back: str,
    ) -> Response | str:
        """Change settings at all brokers of a topic, when the user has confirmed it, and tell the result.

        fields: of the form, beside the given ones. back: URL of the next page.
        """
        if not given:
            flash(_("No value is given."), "warn")
        elif request.form.get("confirmed") != "yes":
            subject = "/".join(place.values())
            return render_template("confirm_settings.html", subject=subject, given=given, fields=fields, back=back)
        else:
            query = {name: byte_count(value) if name == "bytes" else value for name, value in given.items()}
            failures = self.site.cluster.post_to(self.nodes(place["topic"]), path, {**place, **query})
            tell_failures(failures)
            self.site.notify(action, **place, details=f"{urlencode(query)} {failed(failures)}".strip())
        return redirect(back, 303)


def given_fields(names: tuple[str, ...]) -> dict[str, str]:
    return {name: request.form[name].strip() for name in names if request.form.get(name, "").strip()}


def agreed(found: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    """Return the values that all brokers have, for the fields of a form; without those that differ."""
    same = [name for name in names if len({each[name] for each in found}) == 1]
    return {name: found[0][name] for name in same if found[0][name] is not None}


def own_value(found: Mapping[str, Any], name: str) -> Any:
    """Return the setting of a topic as a form takes it: `default` for that of the broker."""
    own = found[f"own_{name}"]
    return DEFAULT if own is None else own


def trace_values(found: Mapping[str, Any]) -> dict[str, Any]:
    return (
        {"rate": found["rate"], "body_bytes": found["body_bytes"]}
        if found["own"]
        else {"rate": DEFAULT, "body_bytes": None}
    )


def is_zero(text: str) -> bool:
    try:
        return float(text) == 0
    except ValueError:
        return False


def byte_count(text: str) -> str:
    """Return a size such as `10 GiB`, `500M` or `4096` as a number of bytes; any other text as it is."""
    try:
        return str(parse_size(text))
    except ValueError:
        return text
