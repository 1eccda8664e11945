"""The Flask application of the web admin."""

from __future__ import annotations

import gzip
import zlib
from typing import Final

from flask import Flask, Response, redirect, request
from werkzeug.exceptions import HTTPException
from werkzeug.wrappers import Response as AnyResponse

from pyqd.admin.nsqadmin_api import api, json_reply, text_reply
from pyqd.admin.site import Site

# Below this size compression saves no packet.
COMPRESSED_MIN: Final = 1024
GZIP_LEVEL: Final = 4


def new_app(site: Site) -> Flask:
    """Return the application; its routes are below the base path of the options."""
    base = "" if site.options.base_path == "/" else site.options.base_path
    app = Flask(__name__, static_folder=site.options.dev_static_dir or "static", static_url_path=f"{base}/static")
    app.register_blueprint(api(site), url_prefix=base or None)
    app.add_url_rule(f"{base}/ping", "ping", lambda: text_reply("OK"))
    if base:
        app.add_url_rule(f"{base}/", "to_base", lambda: redirect(base, 301), strict_slashes=True)
    app.register_error_handler(HTTPException, refusal)
    app.after_request(compress)
    return app


def refusal(error: HTTPException) -> Response | HTTPException:
    """Return the answer to a request that no route takes, in the form of NSQ's daemons."""
    if error.code is None or error.code < 400:
        return error
    name = (error.name or "").upper().replace(" ", "_").replace("'", "")
    return json_reply({"message": name}, error.code)


def compress(response: AnyResponse) -> AnyResponse:
    """Compress an answer if the client asks for gzip or deflate: the one that it names first, as nsqadmin does."""
    response.headers.add("Vary", "Accept-Encoding")
    if response.is_streamed or response.direct_passthrough or "Content-Encoding" in response.headers:
        return response
    wanted = [part.strip() for part in request.headers.get("Accept-Encoding", "").split(",")]
    encoding = next((part for part in wanted if part in ("gzip", "deflate")), "")
    data = response.get_data() if encoding else b""
    if len(data) < COMPRESSED_MIN:
        return response
    if encoding == "gzip":
        response.set_data(gzip.compress(data, GZIP_LEVEL, mtime=0))
    else:
        packer = zlib.compressobj(GZIP_LEVEL, wbits=-zlib.MAX_WBITS)
        response.set_data(packer.compress(data) + packer.flush())
    response.headers["Content-Encoding"] = encoding
    return response
