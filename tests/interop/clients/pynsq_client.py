"""pynsq (tornado) under the orders of a test; see dialogue.py."""

import argparse
import ssl
from functools import partial

import nsq
from tornado import gen
from tornado.ioloop import IOLoop

from tests.interop.clients.dialogue import (
    Command,
    on_thread,
    parse_arguments,
    report,
    report_message,
    report_second_answer,
)


class ReportingReader(nsq.Reader):  # type: ignore[misc] # the library has no types
    """A Reader that reports heartbeats through the hook the library gives for them."""

    def heartbeat(self, conn: nsq.AsyncConn) -> None:
        report("heartbeat")


def negotiated(options: argparse.Namespace) -> dict[str, object]:
    wanted: dict[str, object] = {name: True for name in options.upgrades.split(",") if name}
    if options.auth_secret:
        wanted["auth_secret"] = options.auth_secret
    if "tls_v1" in wanted:
        wanted["tls_options"] = {"ca_certs": options.ca_file, "cert_reqs": ssl.CERT_REQUIRED}
    return wanted


class Consumer:
    def __init__(self, options: argparse.Namespace) -> None:
        self.held: dict[str, nsq.Message] = {}
        self.reader = ReportingReader(
            options.topic,
            options.channel,
            message_handler=self.on_message,
            nsqd_tcp_addresses=options.address.split(",") if options.address else None,
            lookupd_http_addresses=[options.lookupd] if options.lookupd else None,
            lookupd_poll_interval=1,
            max_in_flight=options.max_in_flight,
            heartbeat_interval=options.heartbeat_ms // 1000,
            msg_timeout=options.msg_timeout_ms / 1000,
            **negotiated(options),
        )

    def on_message(self, message: nsq.Message) -> None:
        message.enable_async()
        message_id = message.id.decode()
        self.held[message_id] = message
        report_message(message_id, message.attempts, message.body)

    def on_response(self, conn: nsq.AsyncConn, data: bytes) -> None:
        if data == b"CLOSE_WAIT":
            report("close_wait")

    def obey(self, command: Command) -> None:
        match command.op:
            case "fin":
                self.held.pop(command.id).finish()
            case "fin_twice":
                report_second_answer(self.held.pop(command.id).finish)
            case "req":
                self.held.pop(command.id).requeue(backoff=command.backoff, time_ms=command.delay_ms)
            case "touch":
                self.held[command.id].touch()
            case "cls":
                # The library has no call for CLS; its connection sends any bytes.
                (connection,) = self.reader.conns.values()
                connection.on("response", self.on_response)
                connection.send(b"CLS\n")
            case "close":
                self.reader.close()
                IOLoop.current().stop()


class Producer:
    def __init__(self, options: argparse.Namespace) -> None:
        self.writer = nsq.Writer(
            [options.address], heartbeat_interval=options.heartbeat_ms // 1000, **negotiated(options)
        )

    async def report_connected(self) -> None:
        while not self.writer.conns:
            await gen.sleep(0.01)
        report("connected")

    def on_reply(self, conn: nsq.AsyncConn | None, data: bytes | nsq.Error) -> None:
        if isinstance(data, nsq.Error):
            report("failed", error=str(data))
        else:
            report("published")

    def obey(self, command: Command) -> None:
        match command.op:
            case "pub":
                self.writer.pub(command.topic, command.bodies[0], self.on_reply)
            case "mpub":
                self.writer.mpub(command.topic, command.bodies, self.on_reply)
            case "dpub":
                self.writer.dpub(command.topic, command.delay_ms, command.bodies[0], self.on_reply)
            case "close":
                for connection in self.writer.conns.values():
                    connection.close()
                IOLoop.current().stop()


def main() -> None:
    options = parse_arguments()
    loop = IOLoop.current()
    client: Producer | Consumer
    if options.role == "producer":
        client = producer = Producer(options)
        loop.add_callback(producer.report_connected)
    else:
        client = Consumer(options)
    on_thread(lambda command: loop.add_callback(partial(client.obey, command)))
    nsq.run()


if __name__ == "__main__":
    main()
