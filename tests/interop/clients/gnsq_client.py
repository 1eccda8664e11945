"""gnsq (gevent) under the orders of a test; see dialogue.py."""

import argparse
import sys

import gnsq
from gevent.fileobject import FileObjectThread

from tests.interop.clients.dialogue import (
    Command,
    parse_arguments,
    read_commands,
    report,
    report_message,
    report_second_answer,
)


class Consumer:
    def __init__(self, options: argparse.Namespace) -> None:
        self.held: dict[str, gnsq.Message] = {}
        # The library negotiates no message timeout: the daemon's own one holds.
        self.consumer = gnsq.Consumer(
            options.topic,
            options.channel,
            options.address.split(",") if options.address else [],
            [options.lookupd] if options.lookupd else [],
            lookupd_poll_interval=1,
            message_handler=self.on_message,
            max_in_flight=options.max_in_flight,
            heartbeat_interval=options.heartbeat_ms // 1000,
            tls_v1="tls_v1" in options.upgrades,
        )
        self.consumer.on_response.connect(self.on_response)
        self.consumer.start(block=False)

    def on_message(self, consumer: gnsq.Consumer, message: gnsq.Message) -> None:
        message.enable_async()
        message_id = message.id.decode()
        self.held[message_id] = message
        report_message(message_id, message.attempts, message.body)

    def on_response(self, consumer: gnsq.Consumer, response: bytes) -> None:
        if response == b"_heartbeat_":
            report("heartbeat")
        elif response == b"CLOSE_WAIT":
            report("close_wait")

    def obey(self, command: Command) -> None:
        match command.op:
            case "fin":
                self.held.pop(command.id).finish()
            case "fin_twice":
                report_second_answer(self.held.pop(command.id).finish)
            case "req":
                self.held.pop(command.id).requeue(command.delay_ms, backoff=command.backoff)
            case "touch":
                self.held[command.id].touch()
            case "cls":
                # Only the library's connection has a call for CLS; its consumer keeps the connections to itself.
                (connection,) = self.consumer._connections
                connection.close()
            case "close":
                self.consumer.close()
                self.consumer.join()


class Producer:
    def __init__(self, options: argparse.Namespace) -> None:
        self.producer = gnsq.Producer(options.address, heartbeat_interval=options.heartbeat_ms // 1000)
        self.producer.start()
        report("connected")

    def publish(self, command: Command) -> None:
        match command.op:
            case "pub":
                self.producer.publish(command.topic, command.bodies[0])
            case "mpub":
                self.producer.multipublish(command.topic, command.bodies)
            case "dpub":
                self.producer.publish(command.topic, command.bodies[0], defer=command.delay_ms)

    def obey(self, command: Command) -> None:
        if command.op == "close":
            self.producer.close()
            self.producer.join()
            return
        try:
            self.publish(command)
        except (gnsq.errors.NSQException, ValueError) as error:
            report("failed", error=f"{type(error).__name__}: {error}")
        else:
            report("published")


def main() -> None:
    options = parse_arguments()
    client = Producer(options) if options.role == "producer" else Consumer(options)
    for command in read_commands(FileObjectThread(sys.stdin.fileno(), "rb", closefd=False)):
        client.obey(command)


if __name__ == "__main__":
    main()
