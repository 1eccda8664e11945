"""Pages about single messages: the browser of a channel, publishing and seeking."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from flask import Blueprint, abort, flash, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from pyqd.admin.access.roles import UserRole
from pyqd.admin.health import mark
from pyqd.admin.messages import CHANGES, SCAN_MAX, STATES, MessageList, shown_as
from pyqd.admin.notifications import failed
from pyqd.admin.pages.forms import SiteViews, blueprint, flash_errors
from pyqd.admin.pages.language import translate as _
from pyqd.admin.shapes import answer_of, check_shape, parse_answer
from pyqd.admin.site import Site
from pyqd.admin.upstream import AbsentCallError, UpstreamError

FORMS: Final = ("text", "json", "hex")
# As in the template.
SEEK_FIELDS: Final = ("from", "to", "redeliver", "finished", "skip", "in_flight", "depth")
MESSAGE_ID: Final = re.compile(r"[0-9a-f]{16}")
# As many digits as the milliseconds of a 64-bit integer allow.
SECONDS: Final = re.compile(r"[0-9]{1,15}(\.[0-9]*)?|\.[0-9]+")
# Results of a change of one message.
RESULTS: Final = {
    "done": mark("done"),
    "returned": mark("returned"),
    "gone": mark("gone already"),
    "finished": mark("finished already"),
    "in_flight": mark("in flight, not changed"),
    "held": mark("held by the topic, not changed"),
    "dead_letter": mark("a dead letter, can only be cancelled"),
    "unknown": mark("unknown"),
    "failed": mark("failed"),
}


def browser(site: Site) -> Blueprint:
    views = Browser(site)
    messages, seek, publish = (
        "/topics/<topic>/<channel>/messages",
        "/topics/<topic>/<channel>/seek",
        "/topics/<topic>/-/publish",
    )
    return blueprint(
        "browser",
        {messages: views.messages, seek: views.seek, publish: views.publish},
        {messages: views.change, seek: views.do_seek, publish: views.do_publish},
    )


class Browser(SiteViews):
    """Views of single messages. The calls are pyqd's own: an nsqd answers them with NOT_FOUND."""

    def messages(self, topic: str, channel: str) -> str | Response:
        """Show messages in one state; dead letters have a page of their own."""
        self.site.require(UserRole.VIEW, topic)
        if request.args.get("state") == "dead_letter":
            fields: dict[str, Any] = {
                name: request.args[name] for name in ("node", "body", "text") if request.args.get(name)
            }
            return redirect(url_for("dead_letters.show", topic=topic, channel=channel, **fields), 303)
        nodes = self.nodes(topic)
        node = chosen(request.args.get("node"), nodes)
        state = chosen(request.args.get("state"), STATES)
        form = chosen(request.args.get("body"), FORMS)
        text = request.args.get("text", "")
        clients = self.clients(node, topic, channel) if state == "in_flight" else []
        client = request.args.get("client", "") if clients else ""
        found = self.of(node, topic, channel, state).page(request.args.get("after", ""), text, client=client)
        if state == "in_flight":
            # The broker lists them in no order.
            found.messages.sort(key=lambda row: (row.client_name, row.client, row.deadline_ns))
        return render_template(
            "messages.html",
            topic=topic,
            channel=channel,
            nodes=nodes,
            node=node,
            state=state,
            states=STATES,
            form=form,
            forms=FORMS,
            text=text,
            clients=clients,
            client=client,
            found=found,
            now_ns=time.time_ns(),
            can_choose=state in ("ready", "deferred"),
            scan_max=SCAN_MAX,
            shown_as=shown_as,
        )

    def change(self, topic: str, channel: str) -> Response | str:
        """Change the chosen messages, or all that match the filter."""
        self.site.require(UserRole.OPERATE, topic)
        fields = request.form
        state, change = fields.get("state", ""), fields.get("change", "")
        if state not in STATES or change not in CHANGES:
            abort(400)
        node = named(fields.get("node", ""), self.nodes(topic))
        when = {"due": fields["due"]} if change == "reschedule" and fields.get("due") else {}
        if change == "reschedule" and not when:
            when = {"defer": milliseconds(fields.get("seconds", ""))}
        messages = self.of(node, topic, channel, state)
        ids: Any = fields.getlist("id")
        if fields.get("all") == "yes":
            ids = messages.all_ids(fields.get("text", ""))
        # A filter may match more than the reader has seen.
        is_asked = change == "cancel" or fields.get("all") == "yes"
        if is_asked and ids and fields.get("confirmed") != "yes":
            return render_template(
                "confirm_messages.html",
                topic=topic,
                channel=channel,
                change=change,
                count=len(ids),
                most=SCAN_MAX,
                fields=fields,
            )
        if not ids:
            flash(_("No message is chosen."), "warn")
        else:
            details = {"state": state, **when}
            if fields.get("all") == "yes":
                details |= {"all": "yes", "text": fields.get("text", "")}
            self.change_each(messages, change, ids, when, {"topic": topic, "channel": channel, "node": node}, details)
        shown: dict[str, Any] = {name: fields[name] for name in ("body", "text") if fields.get(name)}
        return redirect(url_for("browser.messages", topic=topic, channel=channel, node=node, state=state, **shown), 303)

    def change_each(
        self,
        messages: MessageList,
        change: str,
        ids: Sequence[str],
        when: Mapping[str, str],
        place: Mapping[str, str],
        details: Mapping[str, str],
    ) -> None:
        """Change messages, and tell the result on the next page and in the log. place, details: for the log.

        Raises: UpstreamError, if none has changed.
        """
        counts: dict[str, int] = {}
        failures: list[str] = []
        try:
            messages.change(change, ids, when, counts)
        except UpstreamError as error:
            failures.append(str(error))
            if not counts:
                raise
            flash_errors(failures)
        finally:
            text = f"{urlencode({**details, **counts})} {failed(failures)}".strip()
            self.site.notify(f"{change}_messages", **place, details=text)
        tell(counts)

    def publish(self, topic: str) -> str:
        self.site.require(UserRole.OPERATE, topic)
        nodes = self.nodes(topic) or self.all_nodes()
        published = request.args.get("id", "")
        return render_template(
            "publish.html", topic=topic, nodes=nodes, published=published if MESSAGE_ID.fullmatch(published) else ""
        )

    def do_publish(self, topic: str) -> Response:
        """Publish one message, or one for each line."""
        self.site.require(UserRole.OPERATE, topic)
        node = named(request.form.get("node", ""), self.nodes(topic) or self.all_nodes())
        text = request.form.get("body", "").replace("\r\n", "\n")
        query = {"topic": topic}
        delay = request.form.get("delay", "").strip()
        if delay:
            query["defer"] = milliseconds(delay)
        path = "/mpub" if request.form.get("lines") else "/pub"
        body = text.encode()
        details = {**query, "bytes": len(body)} | ({"lines": text.count("\n") + 1} if path == "/mpub" else {})
        del details["topic"]
        place = {"topic": topic, "node": node}
        try:
            reply = self.site.upstream.send("POST", node, path, query, body)
        except UpstreamError as error:
            # A time-out does not tell whether the broker has taken it.
            self.site.audit("publish", **place, details=f"{urlencode(details)} {failed([error])}")
            raise
        self.site.notify("publish", **place, details=urlencode(details))
        flash(_("Published."), "good")
        # An nsqd does not tell it.
        found = reply.headers.get("x-nsq-message-id")
        return redirect(url_for("browser.publish", topic=topic, id=found), 303)

    def seek(self, topic: str, channel: str) -> str:
        """Show the form, and the effect of seeking to a given place, broker by broker."""
        self.site.require(UserRole.OPERATE, topic)
        to = request.args.get("to", "").strip()
        previews = []
        for node in self.nodes(topic) if to else []:
            query = {"topic": topic, "channel": channel, "to": to, "dry_run": "true"}
            try:
                body = self.site.upstream.post(node, "/channel/seek", query)
                with answer_of(node, UpstreamError):
                    effect = parse_answer(body)
                    check_shape(effect, dict.fromkeys(SEEK_FIELDS, (int,)))
                previews.append((node, effect, ""))
            except AbsentCallError:
                previews.append((node, None, _("NSQ's own daemon does not have this call.")))
            except UpstreamError as error:
                previews.append((node, None, str(error)))
        return render_template("seek.html", topic=topic, channel=channel, to=to, previews=previews)

    def do_seek(self, topic: str, channel: str) -> Response:
        self.site.require(UserRole.OPERATE, topic)
        to = request.form.get("to", "").strip()
        query = {"topic": topic, "channel": channel, "to": to}
        chosen_nodes = request.form.getlist("node")
        known = self.nodes(topic) if chosen_nodes else []
        errors: list[str] = []
        done = [node for node in chosen_nodes if self.seek_one(node, known, query, errors)]
        flash_errors(errors)
        if done:
            flash(_("Done."), "good")
        return redirect(url_for("pages.channel", topic=topic, channel=channel), 303)

    def seek_one(self, node: str, known: Sequence[str], query: Mapping[str, str], errors: list[str]) -> bool:
        """Move a channel at one broker, and log it at once. Returns: False after an error, which errors gets."""
        details = urlencode({"to": query["to"]})
        place = {"topic": query["topic"], "channel": query["channel"], "node": node}
        try:
            named(node, known)
        except UpstreamError as error:
            errors.append(str(error))
            return False
        try:
            self.site.upstream.post(node, "/channel/seek", query)
        except UpstreamError as error:
            # A time-out does not tell whether the broker has moved the channel.
            self.site.audit("seek_channel", **place, details=f"{details} {failed([error])}")
            errors.append(str(error))
            return False
        self.site.notify("seek_channel", **place, details=details)
        return True

    def clients(self, node: str, topic: str, channel: str) -> list[tuple[str, str, int]]:
        """Return address, name and messages in flight of the clients of a channel that have some."""
        query = {"format": "json", "topic": topic, "channel": channel}
        topics = self.site.upstream.get(node, "/stats", query).get("topics") or ()
        with answer_of(node, UpstreamError):
            rows = [client for row in topics for each in row["channels"] for client in each.get("clients") or ()]
            found = [
                (str(row["remote_address"]), str(row["hostname"] or row["client_id"]), int(row["in_flight_count"]))
                for row in rows
                if row["in_flight_count"]
            ]
        return sorted(found, key=lambda each: (each[1], each[0]))

    def of(self, node: str, topic: str, channel: str, state: str) -> MessageList:
        return MessageList(self.site.upstream, node, topic, channel, state)

    def all_nodes(self) -> list[str]:
        return sorted(node.http_address for node in self.site.cluster.nodes().value)


def tell(counts: Mapping[str, int]) -> None:
    text = ", ".join(f"{_(RESULTS.get(status, status))}: {count:,}" for status, count in counts.items())
    flash(text, "good" if counts.keys() <= {"done", "returned"} else "warn")


def chosen(wanted: str | None, known: Sequence[str]) -> str:
    """Return a value if it is one of the known ones; otherwise the first of them. Raises: UpstreamError for none."""
    if wanted in known:
        return str(wanted)
    if not known:
        raise UpstreamError(_("No broker has this topic."))
    return known[0]


def named(node: str, known: Sequence[str]) -> str:
    """Return the broker that a change names. Raises: UpstreamError if it is none of the known ones."""
    if node not in known:
        # The change must not go to a broker that the user has not chosen.
        text = _("The broker %(node)s of this form is not known to have the topic now: load the page again.")
        raise UpstreamError(text % {"node": repr(node)})
    return node


def milliseconds(seconds: str) -> str:
    """Return seconds of a form as whole milliseconds. Raises: UpstreamError."""
    if not SECONDS.fullmatch(seconds or "0"):
        raise UpstreamError(_("%(text)s is no number of seconds") % {"text": repr(seconds)})
    return str(round(float(seconds or 0) * 1000))
