"""Parameters, answers and errors of the daemon's HTTP calls, for pyqd/openapi.json. docs/http.md explains them."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from pyqd.api import debug, messages, replay, trace
from pyqd.broker import peek
from pyqd.debug.profiler import SECONDS_MAX

Schema = dict[str, Any]

TEXT: Final = "text/plain"
JSON: Final = "application/json"
OCTETS: Final = "application/octet-stream"

STRING: Final[Schema] = {"type": "string"}
BOOLEAN: Final[Schema] = {"type": "boolean"}
INTEGER: Final[Schema] = {"type": "integer"}
NUMBER: Final[Schema] = {"type": "number"}
OBJECT: Final[Schema] = {"type": "object"}
NAME: Final[Schema] = {"type": "string", "maxLength": 64, "pattern": "^[.a-zA-Z0-9_-]+(#ephemeral)?$"}


def optional(schema: Schema) -> Schema:
    return {**schema, "type": [schema["type"], "null"]}


def choice(*values: str) -> Schema:
    """Return the schema of a parameter that has one of the values, by default the first."""
    return {**STRING, "enum": list(values), "default": values[0]}


def array(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def record(*left_out: str, **properties: Schema) -> Schema:
    """Return the schema of an object. left_out: properties that it may lack."""
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in left_out],
    }


SCHEMAS: Final[dict[str, Schema]] = {
    "Error": record(
        "earliest",
        "next",
        "https_port",
        message={**STRING, "description": "a code; some are followed by a colon and a reason"},
        earliest={**INTEGER, "description": "with POSITION_GONE: the oldest position"},
        next={**INTEGER, "description": "with POSITION_BEYOND_END: the next position"},
        https_port={**INTEGER, "description": "with TLS_REQUIRED: the port of HTTPS"},
    ),
    "Info": record(
        version=STRING,
        pyqd_version=STRING,
        broadcast_address=STRING,
        hostname=STRING,
        http_port=INTEGER,
        tcp_port=INTEGER,
        start_time=INTEGER,
        max_heartbeat_interval=INTEGER,
        max_output_buffer_size=INTEGER,
        max_output_buffer_timeout=INTEGER,
        max_deflate_level=INTEGER,
        topology_zone=STRING,
        topology_region=STRING,
    ),
    "Stats": record(
        "damage",
        "lookup_daemons",
        "trace",
        "memory",
        version=STRING,
        pyqd_version=STRING,
        health=STRING,
        start_time=INTEGER,
        damage=ref("Damage"),
        lookup_daemons=array(OBJECT),
        trace=OBJECT,
        topics={"type": ["array", "null"], "items": ref("TopicStats")},
        memory=OBJECT,
        producers={"type": ["array", "null"], "items": OBJECT},
    ),
    "TopicStats": record(
        "damage",
        topic_name=STRING,
        channels=array(ref("ChannelStats")),
        depth=INTEGER,
        backend_depth=INTEGER,
        message_count=INTEGER,
        message_bytes=INTEGER,
        paused=BOOLEAN,
        damage=ref("Damage"),
        e2e_processing_latency=OBJECT,
    ),
    "ChannelStats": record(
        "zone_local_msg_count",
        "region_local_msg_count",
        "global_msg_count",
        "limits",
        "damage",
        channel_name=STRING,
        depth=INTEGER,
        backend_depth=INTEGER,
        in_flight_count=INTEGER,
        deferred_count=INTEGER,
        message_count=INTEGER,
        zone_local_msg_count=INTEGER,
        region_local_msg_count=INTEGER,
        global_msg_count=INTEGER,
        requeue_count=INTEGER,
        timeout_count=INTEGER,
        client_count=INTEGER,
        clients={"type": ["array", "null"], "items": OBJECT},
        paused=BOOLEAN,
        limits=OBJECT,
        damage=ref("Damage"),
        e2e_processing_latency=OBJECT,
    ),
    "Damage": record(count=INTEGER, records_lost=INTEGER, bytes=INTEGER),
    "Durability": record(
        health=STRING,
        sync_every=INTEGER,
        sync_timeout_ms=INTEGER,
        unsynced_messages=INTEGER,
        unsynced_bytes=INTEGER,
        last_sync=optional(INTEGER),
        sync_failures=INTEGER,
        write_failures=INTEGER,
        last_stop={**STRING, "enum": ["new", "clean", "kill", "power_failure"]},
        damage=ref("Damage"),
        damaged_topics=array(OBJECT),
        set_aside=array(record(topic=STRING, channel=optional(STRING), reason=STRING)),
        refusing_topics=array(STRING),
        disk_free_bytes=optional(INTEGER),
        disk_free_min_bytes=INTEGER,
    ),
    "Created": record("to", "depth", topic=STRING, channel=STRING, to=INTEGER, depth=INTEGER, created=BOOLEAN),
    "Retention": record(
        topic=STRING, bytes=INTEGER, time=STRING, own_bytes=optional(INTEGER), own_time=optional(STRING)
    ),
    "Quota": record(topic=STRING, bytes=INTEGER, own_bytes=optional(INTEGER), used=INTEGER, refused=optional(STRING)),
    "Limits": record(
        topic=STRING,
        channel=STRING,
        rate=NUMBER,
        burst=NUMBER,
        max_attempts=INTEGER,
        dead_letter_topic=optional(STRING),
        dead_letter_count=INTEGER,
        dead_letters_waiting=INTEGER,
        waiting_for=optional(STRING),
    ),
    "Positions": record(
        "at",
        topic=STRING,
        node=STRING,
        created=INTEGER,
        format=INTEGER,
        earliest=INTEGER,
        next=INTEGER,
        earliest_timestamp=optional(INTEGER),
        newest_timestamp=optional(INTEGER),
        records=INTEGER,
        bytes=INTEGER,
        segments=array(record(first=INTEGER, records=INTEGER, bytes=INTEGER, created=INTEGER, first_timestamp=INTEGER)),
        channels=array(record(channel=STRING, floor=INTEGER, next=INTEGER)),
        at=INTEGER,
    ),
    "Seek": record(
        topic=STRING,
        channel=STRING,
        **{"from": INTEGER},
        to=INTEGER,
        redeliver=INTEGER,
        finished=INTEGER,
        skip=INTEGER,
        in_flight=INTEGER,
        deferred=INTEGER,
        depth=INTEGER,
        dry_run=BOOLEAN,
    ),
    "Messages": record(
        topic=STRING,
        channel=optional(STRING),
        state=STRING,
        messages=array(ref("Message")),
        next={**optional(STRING), "description": "`after` of the next page"},
    ),
    "Message": record(
        "due",
        "client",
        "delivered",
        "deadline",
        "body",
        "truncated",
        id=STRING,
        state=STRING,
        timestamp={**INTEGER, "description": "nanoseconds since 1970"},
        attempts=INTEGER,
        size=INTEGER,
        position=optional(INTEGER),
        due=optional(INTEGER),
        client=optional(OBJECT),
        delivered=INTEGER,
        deadline=INTEGER,
        body=STRING,
        truncated=BOOLEAN,
    ),
    "Changed": record(
        "due",
        topic=STRING,
        id=STRING,
        due={**INTEGER, "description": "after a reschedule: nanoseconds since 1970"},
        results=array(record("was", channel=optional(STRING), status=STRING, was=STRING)),
    ),
    "Trace": record(topic=STRING, traced=BOOLEAN, rate=NUMBER, body_bytes=INTEGER, own=BOOLEAN),
    "Drain": record(
        draining=BOOLEAN,
        complete=BOOLEAN,
        remaining_ms=INTEGER,
        in_flight=INTEGER,
        consumers=INTEGER,
        pid=INTEGER,
    ),
    "Restart": record(pid=INTEGER, restarting=BOOLEAN, error=STRING),
    "Successor": record(pid=INTEGER),
}


class Parameter(NamedTuple):
    """A parameter of the query, or of the path if its name is in the path."""

    name: str
    schema: Schema
    meaning: str = ""
    required: bool = False


PLACE_FORMS: Final = "`earliest`, `latest`, a position, or a time"
TOPIC: Final = Parameter("topic", NAME, "name of a topic", required=True)
CHANNEL: Final = Parameter("channel", NAME, "name of a channel", required=True)
ANY_CHANNEL: Final = CHANNEL._replace(required=False)
ID: Final = Parameter("id", {**STRING, "pattern": "^[0-9a-f]{16}$"}, "id of a message", required=True)
DEFER: Final = Parameter("defer", INTEGER, "delay in milliseconds; not together with `due`")
DUE: Final = Parameter("due", STRING, "due time in Unix milliseconds or RFC 3339")
BYTES: Final = Parameter("bytes", STRING, "a number of bytes, or `default` for that of the daemon's flag")
MAX_BYTES: Final = Parameter(
    "max_bytes", {**INTEGER, "default": replay.RANGE_BYTES}, f"limit of the answer, at most {replay.RANGE_BYTES_MAX}"
)
OPTION: Final = Parameter("opt", STRING, "key of an option", required=True)


class Answer(NamedTuple):
    """An answer: type and schema of its body, and names of its own headers. content_type "": no body."""

    content_type: str = ""
    schema: Schema = STRING
    headers: tuple[str, ...] = ()


def answer_of(name: str) -> Answer:
    return Answer(JSON, ref(name))


EMPTY: Final = Answer()
IS_TEXT: Final = Answer(TEXT)


class Call(NamedTuple):
    """A call. errors: statuses, each before its codes; a code with a colon is followed by a reason.

    body: type and meaning of the request's body. fails: answers in text, by status.
    """

    summary: str
    parameters: tuple[Parameter, ...] = ()
    answers: tuple[Answer, ...] = (EMPTY,)
    errors: str = ""
    body: tuple[str, str] = ("", "")
    fails: tuple[int, ...] = ()


STORED: Final = "503 STORAGE_FAILED:"
# Of calls that create a topic or a channel.
CREATING: Final = "503 OUT_OF_MEMORY: OUT_OF_MAPPINGS:"
TOPIC_CODES: Final = "400 MISSING_ARG_TOPIC INVALID_TOPIC 404 TOPIC_NOT_FOUND"
ANY_TOPIC_CODES: Final = "400 MISSING_ARG_TOPIC 404 TOPIC_NOT_FOUND"
CHANNEL_CODES: Final = (
    "400 MISSING_ARG_TOPIC INVALID_ARG_TOPIC MISSING_ARG_CHANNEL INVALID_ARG_CHANNEL"
    " 404 TOPIC_NOT_FOUND CHANNEL_NOT_FOUND"
)
ANY_CHANNEL_CODES: Final = CHANNEL_CODES.replace("MISSING_ARG_CHANNEL ", "")
PLACE_CODES: Final = "400 POSITION_BEYOND_END 410 POSITION_GONE"
PUBLISH_CODES: Final = (
    f"400 MISSING_ARG_TOPIC INVALID_TOPIC INVALID_DEFER INVALID_DUE 403 TOO_MANY_TOPICS 503 EXITING {STORED} {CREATING}"
)
MESSAGE_CODES: Final = f"{ANY_CHANNEL_CODES} 400 MISSING_ARG_ID INVALID_ARG_ID 404 MESSAGE_NOT_FOUND {STORED}"
LOG_HEADERS: Final = tuple(f"X-Pyqd-{name}" for name in ("Format", "Node", "Created", "From", "Next", "End", "Count"))
TRACE_HEADERS: Final = tuple(f"X-Pyqd-{name}" for name in ("Format", "Node", "Position", "Next", "Oldest", "End"))
PROFILE: Final = Call(
    "Record a flame graph of the next seconds",
    (
        Parameter(
            "seconds",
            {**INTEGER, "minimum": 1, "default": debug.SECONDS_DEFAULT},
            f"duration, at most {SECONDS_MAX}",
        ),
        Parameter("rate", {**INTEGER, "minimum": 1, "default": debug.RATE_DEFAULT}, "samples a second"),
        Parameter("format", choice(debug.FORMAT_SVG, debug.FORMAT_RAW), "picture or stacks"),
    ),
    (Answer("image/svg+xml"), IS_TEXT),
    "400 INVALID_SECONDS INVALID_RATE INVALID_FORMAT",
    fails=(501, 503),
)
HEAP: Final = Call(
    "Return memory by type, and while tracing by line of source",
    (Parameter("lines", {**INTEGER, "default": debug.LINES_DEFAULT}, "lines of source"),),
    (IS_TEXT,),
    "400 INVALID_LINES",
)
STACKS: Final = Call("Return the stacks of all greenlets and threads", (), (IS_TEXT,))
NOTHING: Final = Call("Return no data, for nsqd's clients", (), (IS_TEXT,))

CALLS: Final[dict[str, Call]] = {
    "GET /ping": Call(
        "Return whether the daemon is healthy", (), (Answer(TEXT, STRING, ("X-Pyqd-Damage",)),), fails=(500,)
    ),
    "GET /info": Call("Return version, addresses and limits", (), (answer_of("Info"),)),
    "GET /stats": Call(
        "Return counters of topics, channels and clients",
        (
            Parameter("format", {**STRING, "enum": ["json", "text"], "default": "text"}, "form of the answer"),
            TOPIC._replace(meaning="only this topic", required=False),
            ANY_CHANNEL._replace(meaning="only this channel"),
            Parameter("include_clients", {**BOOLEAN, "default": True}, "list clients"),
            Parameter("include_mem", {**BOOLEAN, "default": True}, "report memory"),
        ),
        (answer_of("Stats"), IS_TEXT),
    ),
    "GET /metrics": Call("Return all metrics in Prometheus' text format", (), (IS_TEXT,)),
    "GET /durability": Call("Return how safe the accepted messages are", (), (answer_of("Durability"),)),
    "GET /openapi.json": Call("Return this description", (), (Answer(JSON, OBJECT),)),
    "POST /pub": Call(
        "Publish the body as one message",
        (TOPIC, DEFER, DUE),
        (Answer(TEXT, {"const": "OK"}, ("X-NSQ-Message-Id",)),),
        f"400 MSG_EMPTY {PUBLISH_CODES} 413 MSG_TOO_BIG",
        (OCTETS, "the message"),
    ),
    "POST /mpub": Call(
        "Publish many messages: all of them, or none",
        (TOPIC, Parameter("binary", {**BOOLEAN, "default": False}, "form of the body"), DEFER, DUE),
        (Answer(TEXT, {"const": "OK"}, ("X-NSQ-Message-Id", "X-NSQ-Message-Count")),),
        f"{PUBLISH_CODES} 413 MSG_TOO_BIG BODY_TOO_BIG BAD_BODY BAD_MESSAGE",
        (OCTETS, "a message a line; with `binary=true` a count, then size and bytes of each, as big-endian int32"),
    ),
    "GET /topic/positions": Call(
        "Return the readable range of a topic",
        (TOPIC, Parameter("time", STRING, "a time whose position is wanted")),
        (answer_of("Positions"),),
        f"{TOPIC_CODES} 400 INVALID_TIME",
    ),
    "GET /topic/log": Call(
        "Return messages of a topic as records of its log",
        (
            TOPIC,
            Parameter("from", {**STRING, "default": "earliest"}, PLACE_FORMS),
            Parameter("to", INTEGER, "position before which to end"),
            MAX_BYTES,
        ),
        (Answer(OCTETS, STRING, LOG_HEADERS),),
        f"{TOPIC_CODES} 400 INVALID_FROM INVALID_TO INVALID_MAX_BYTES {PLACE_CODES}",
    ),
    "POST /channel/seek": Call(
        "Move a channel to a place of the log",
        (
            TOPIC,
            CHANNEL,
            Parameter("to", STRING, PLACE_FORMS, required=True),
            Parameter("dry_run", {**BOOLEAN, "default": False}, "only return the effect"),
        ),
        (answer_of("Seek"),),
        f"{CHANNEL_CODES} 400 MISSING_ARG_TO INVALID_TO INVALID_DRY_RUN {PLACE_CODES} {STORED}",
    ),
    "GET /channel/messages": Call(
        "List the messages of a channel, or those that a topic holds",
        (
            TOPIC,
            ANY_CHANNEL,
            Parameter("state", choice(*peek.STATES), "state of the messages"),
            Parameter(
                "limit",
                {**INTEGER, "minimum": 1, "maximum": messages.LIMIT_MAX, "default": messages.LIMIT},
                "messages on a page",
            ),
            Parameter("after", STRING, "`next` of the page before"),
            Parameter("body", choice(*messages.BODY_FORMS), "form of bodies"),
        ),
        (answer_of("Messages"),),
        f"{ANY_CHANNEL_CODES} 400 INVALID_STATE INVALID_LIMIT INVALID_AFTER INVALID_BODY",
    ),
    "POST /message/cancel": Call(
        "Finish a message unread", (TOPIC, ID, ANY_CHANNEL), (answer_of("Changed"),), MESSAGE_CODES
    ),
    "POST /message/reschedule": Call(
        "Change the due time of a message; `defer` or `due` is required",
        (TOPIC, ID, ANY_CHANNEL, DEFER, DUE),
        (answer_of("Changed"),),
        f"{MESSAGE_CODES} 400 MISSING_ARG_DUE INVALID_DEFER INVALID_DUE",
    ),
    "POST /message/deliver_now": Call(
        "Deliver a deferred message now", (TOPIC, ID, ANY_CHANNEL), (answer_of("Changed"),), MESSAGE_CODES
    ),
    "POST /topic/create": Call(
        "Create a topic if it is missing",
        (TOPIC,),
        errors=f"400 MISSING_ARG_TOPIC INVALID_TOPIC 403 TOO_MANY_TOPICS {STORED} {CREATING}",
    ),
    "POST /channel/create": Call(
        "Create a channel if it is missing; the answer has a body if `start` is given",
        (TOPIC, CHANNEL, Parameter("start", STRING, PLACE_FORMS)),
        (answer_of("Created"),),
        f"{CHANNEL_CODES.replace(' CHANNEL_NOT_FOUND', '')} 400 INVALID_START {PLACE_CODES} 403 TOO_MANY_CHANNELS"
        f" {STORED} {CREATING}",
    ),
    "GET /topic/retention": Call(
        "Return how long finished messages of a topic are kept", (TOPIC,), (answer_of("Retention"),), TOPIC_CODES
    ),
    "POST /topic/retention": Call(
        "Set how long finished messages of a topic are kept; `bytes` or `time` is required",
        (TOPIC, BYTES, Parameter("time", STRING, "a duration such as `72h`, or `default`")),
        (answer_of("Retention"),),
        f"{TOPIC_CODES} 400 MISSING_ARG_BYTES INVALID_BYTES INVALID_TIME {STORED}",
    ),
    "GET /topic/quota": Call("Return the quota of a topic", (TOPIC,), (answer_of("Quota"),), TOPIC_CODES),
    "POST /topic/quota": Call(
        "Set the quota of a topic",
        (TOPIC, BYTES._replace(required=True)),
        (answer_of("Quota"),),
        f"{TOPIC_CODES} 400 MISSING_ARG_BYTES INVALID_BYTES {STORED}",
    ),
    "GET /trace/log": Call(
        "Return trace events",
        (
            Parameter("position", {**INTEGER, "default": 0}, "first event"),
            MAX_BYTES,
            Parameter(
                "wait_ms", {**INTEGER, "default": 0}, f"time to wait for events at the end, at most {trace.WAIT_MS_MAX}"
            ),
        ),
        (Answer(OCTETS, STRING, TRACE_HEADERS),),
        "400 INVALID_POSITION INVALID_MAX_BYTES INVALID_WAIT_MS",
    ),
    "GET /topic/trace": Call("Return the trace of a topic", (TOPIC,), (answer_of("Trace"),), TOPIC_CODES),
    "POST /topic/trace": Call(
        "Set the trace of a topic",
        (
            TOPIC,
            Parameter("rate", STRING, "part of the messages, 0 to 1, or `default`", required=True),
            Parameter("body_bytes", {**INTEGER, "default": 0}, "bytes of each body that are kept"),
        ),
        (answer_of("Trace"),),
        f"{TOPIC_CODES} 400 MISSING_ARG_RATE INVALID_RATE INVALID_BODY_BYTES {STORED}",
    ),
    "POST /topic/delete": Call("Delete a topic", (TOPIC,), errors=f"{ANY_TOPIC_CODES} {STORED}"),
    "POST /topic/empty": Call(
        "Drop the messages that no channel has received", (TOPIC,), errors=f"{TOPIC_CODES} {STORED}"
    ),
    "POST /topic/pause": Call(
        "Hold the messages back from the channels", (TOPIC,), errors=f"{ANY_TOPIC_CODES} {STORED}"
    ),
    "POST /topic/unpause": Call(
        "Give the held messages to the channels", (TOPIC,), errors=f"{ANY_TOPIC_CODES} {STORED}"
    ),
    "POST /channel/delete": Call("Delete a channel", (TOPIC, CHANNEL), errors=f"{CHANNEL_CODES} {STORED}"),
    "POST /channel/empty": Call("Drop all messages", (TOPIC, CHANNEL), errors=f"{CHANNEL_CODES} {STORED}"),
    "POST /channel/pause": Call("Stop delivery", (TOPIC, CHANNEL), errors=f"{CHANNEL_CODES} {STORED}"),
    "POST /channel/unpause": Call("Resume delivery", (TOPIC, CHANNEL), errors=f"{CHANNEL_CODES} {STORED}"),
    "GET /channel/limits": Call(
        "Return the limits of a channel", (TOPIC, CHANNEL), (answer_of("Limits"),), CHANNEL_CODES
    ),
    "POST /channel/limits": Call(
        "Set limits of a channel; one at least is required",
        (
            TOPIC,
            CHANNEL,
            Parameter("rate", NUMBER, "messages a second; 0: no limit"),
            Parameter("burst", NUMBER, "messages at once"),
            Parameter("max_attempts", {**INTEGER, "minimum": 0, "maximum": 65535}, "deliveries; 0: no limit"),
            Parameter("dead_letter_topic", NAME, "topic for messages that reach `max_attempts`"),
        ),
        (answer_of("Limits"),),
        f"{CHANNEL_CODES} 400 MISSING_ARG_RATE INVALID_RATE INVALID_BURST INVALID_MAX_ATTEMPTS"
        f" MISSING_ARG_MAX_ATTEMPTS INVALID_DEAD_LETTER_TOPIC MISSING_ARG_DEAD_LETTER_TOPIC 403 TOO_MANY_TOPICS"
        f" {STORED} {CREATING}",
    ),
    "GET /config/{opt}": Call(
        "Return an option: strings as they are, all else as JSON",
        (OPTION,),
        (IS_TEXT, Answer(JSON, {})),
        "400 INVALID_OPTION",
    ),
    "PUT /config/{opt}": Call(
        "Change an option until the process ends",
        (OPTION,),
        (IS_TEXT, Answer(JSON, {})),
        "400 INVALID_OPTION INVALID_VALUE 413 INVALID_VALUE",
        (TEXT, "the value"),
    ),
    "GET /drain": Call("Return the progress of a drain", (), (answer_of("Drain"),)),
    "POST /drain": Call(
        "Begin to drain, or set another deadline",
        (Parameter("timeout", STRING, "a duration such as `30s`"),),
        (answer_of("Drain"),),
        "400 INVALID_TIMEOUT",
    ),
    "GET /restart": Call("Return the state of a restart", (), (answer_of("Restart"),)),
    "POST /restart": Call("Replace the process by a new one", (), (answer_of("Successor"),), "503 RESTART_REFUSED:"),
    "GET /debug/profile": PROFILE,
    "GET /debug/heap": HEAP,
    "POST /debug/heap/start": Call(
        "Begin to trace allocations",
        (Parameter("frames", {**INTEGER, "minimum": 1, "default": 1}, "frames of each allocation"),),
        (IS_TEXT,),
        "400 INVALID_FRAMES",
    ),
    "POST /debug/heap/stop": Call("End the tracing of allocations", (), (IS_TEXT,)),
    "GET /debug/greenlets": STACKS,
    "PUT /debug/setblockrate": Call(
        "Check the rate and change nothing, for nsqd's clients; a form in the body may have the rate",
        (Parameter("rate", INTEGER, "a number"),),
        fails=(400,),
        body=("application/x-www-form-urlencoded", "the rate"),
    ),
    "POST /debug/freememory": Call("Collect garbage and return free memory to the system", (), (IS_TEXT,)),
    "GET /debug/pprof/": Call("List the paths of diagnostics", (), (IS_TEXT,)),
    "GET /debug/pprof/cmdline": Call("Return the command line", (), (IS_TEXT,)),
    "GET /debug/pprof/symbol": NOTHING,
    "POST /debug/pprof/symbol": NOTHING,
    "GET /debug/pprof/profile": PROFILE,
    "GET /debug/pprof/heap": HEAP,
    "GET /debug/pprof/goroutine": STACKS,
    "GET /debug/pprof/block": NOTHING,
    "GET /debug/pprof/threadcreate": Call("Return the stacks of threads", (), (IS_TEXT,)),
}
