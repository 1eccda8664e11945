"""Page of a channel's dead letters, and their way back."""

from __future__ import annotations

import time
from urllib.parse import urlencode

from flask import Blueprint, flash, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from pyqd.admin.access.roles import UserRole
from pyqd.admin.dead_letters import RETURNED_MAX, WAITING, DeadLetters
from pyqd.admin.messages import SCAN_MAX, STATES, shown_as
from pyqd.admin.pages.browser import FORMS, chosen, named, tell
from pyqd.admin.pages.forms import SiteViews, blueprint, flash_errors
from pyqd.admin.pages.language import translate as _
from pyqd.admin.site import Site
from pyqd.admin.upstream import UpstreamError


def dead_letters(site: Site) -> Blueprint:
    views = DeadLetterViews(site)
    path = "/topics/<topic>/<channel>/dead-letters"
    return blueprint("dead_letters", {path: views.show}, {path: views.give_back})


class DeadLetterViews(SiteViews):
    """Views of dead letters. They are pyqd's own: an nsqd has none."""

    def show(self, topic: str, channel: str) -> str:
        self.site.require(UserRole.VIEW, topic)
        fields = request.args
        nodes = self.nodes(topic)
        node = chosen(fields.get("node"), nodes)
        letters = self.of(node, topic, channel)
        place = letters.place()
        if place.target:
            # Dead letters are messages of their dead-letter topic.
            self.site.require(UserRole.VIEW, place.target)
        holder = place.chosen(fields.get("holder"))
        text = fields.get("text", "")
        return render_template(
            "dead_letters.html",
            topic=topic,
            channel=channel,
            nodes=nodes,
            node=node,
            state="dead_letter",
            states=STATES,
            place=place,
            holder=holder,
            waiting=WAITING,
            form=chosen(fields.get("body"), FORMS),
            forms=FORMS,
            text=text,
            found=letters.page(place, holder, fields.get("after", ""), text),
            now_ns=time.time_ns(),
            can_choose=holder != WAITING,
            scan_max=SCAN_MAX,
            shown_as=shown_as,
        )

    def give_back(self, topic: str, channel: str) -> Response | str:
        """Return the chosen dead letters, or all that match the filter."""
        self.site.require(UserRole.OPERATE, topic)
        fields = request.form
        node, text = named(fields.get("node", ""), self.nodes(topic)), fields.get("text", "")
        letters = self.of(node, topic, channel)
        holding = letters.holding()
        if holding is None:
            raise UpstreamError(f"{node}: the channel has no dead-letter topic any more")
        self.site.require(UserRole.OPERATE, holding.target)
        holder = fields.get("holder", "")
        if holder not in (holding.held_by or [""]):
            raise UpstreamError(f"{node}: topic {holding.target} has no channel {holder} any more")
        is_all = fields.get("all") == "yes"
        rows = letters.matching(holding.target, holder, None if is_all else fields.getlist("id"), text)
        if is_all and rows and fields.get("confirmed") != "yes":
            return render_template(
                "confirm_return.html",
                topic=topic,
                channel=channel,
                count=len(rows),
                most=RETURNED_MAX,
                holding=holding,
                fields=fields,
            )
        if not rows:
            flash(_("No message is chosen."), "warn")
        else:
            counts, errors = letters.give_back(holding.target, holder, rows)
            self.site.notify(
                "return_dead_letters",
                topic=topic,
                channel=channel,
                node=node,
                details=urlencode({"target": holding.target, "holder": holder, **counts}),
            )
            flash_errors(errors)
            if counts:
                tell(counts)
        here = url_for("dead_letters.show", topic=topic, channel=channel, node=node, holder=holder, text=text)
        return redirect(here, 303)

    def of(self, node: str, topic: str, channel: str) -> DeadLetters:
        return DeadLetters(self.site.upstream, node, topic, channel)
