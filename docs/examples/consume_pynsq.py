"""Print every message of the topic "test", with pynsq as PyPI has it: consume_pynsq.py [host:port]."""

import sys

import nsq


def print_message(message: nsq.Message) -> bool:
    print(message.body.decode(), flush=True)
    return True


address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:4150"
nsq.Reader("test", "print", message_handler=print_message, nsqd_tcp_addresses=[address])
nsq.run()
