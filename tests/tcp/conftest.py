"""Every test of commands runs against pyqd, and against nsqd when a path to one is given."""

from tests.support.two_servers import (  # noqa: F401 -- pytest finds fixtures and hooks in the names of this module
    _the_servers_stay_well,
    client,
    connect,
    early_topics,
    narrow_early_topics,
    narrow_server,
    narrow_timed_topic,
    own_server,
    pytest_generate_tests,
    server,
    timed_topic,
    topic,
    upgrading_server,
)
