"""ansq (asyncio) under the orders of a test; see dialogue.py."""

import argparse
import asyncio

import ansq
from ansq.tcp.reader import Reader
from ansq.tcp.types import NSQErrorSchema, NSQMessage, TCPConnection
from ansq.tcp.writer import Writer

from tests.interop.clients.dialogue import Command, on_thread, parse_arguments, report, report_message


async def report_heartbeat(connection: TCPConnection) -> None:
    report("heartbeat")


def connection_options(options: argparse.Namespace) -> ansq.ConnectionOptions:
    return ansq.ConnectionOptions(
        on_heartbeat=report_heartbeat,
        features=ansq.ConnectionFeatures(
            heartbeat_interval=options.heartbeat_ms,
            msg_timeout=options.msg_timeout_ms,
            tls_v1="tls_v1" in options.upgrades,
        ),
    )


class Consumer:
    """Reads with RDY 1, the only count the library's reader knows."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.held: dict[str, NSQMessage] = {}
        self.arrivals = asyncio.create_task(self.report_messages())

    async def report_messages(self) -> None:
        async for message in self.reader.messages():
            self.held[message.id] = message
            report_message(message.id, message.attempts, message.body)

    async def obey(self, command: Command) -> None:
        match command.op:
            case "fin":
                await self.held.pop(command.id).fin()
            case "fin_twice":
                message = self.held.pop(command.id)
                await message.fin()
                try:
                    await message.fin()
                except Exception as error:
                    report("answered", error=f"{type(error).__name__}: {error}")
                else:
                    report("answered", error="")
            case "req":
                # There is no back-off.
                await self.held.pop(command.id).req(command.delay_ms)
            case "touch":
                await self.held[command.id].touch()
            case "cls":
                # The library's own cls() only closes the socket.
                (connection,) = self.reader.connections
                response = await connection.execute("CLS")
                if response is not None and response.body == b"CLOSE_WAIT":
                    report("close_wait")
            case "close":
                self.arrivals.cancel()
                await self.reader.close()


class Producer:
    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        report("connected")

    async def obey(self, command: Command) -> None:
        match command.op:
            case "pub":
                response = await self.writer.pub(command.topic, command.bodies[0])
            case "mpub":
                response = await self.writer.mpub(command.topic, *command.bodies)
            case "dpub":
                response = await self.writer.dpub(command.topic, command.bodies[0], command.delay_ms)
            case _:
                await self.writer.close()
                return
        if isinstance(response, NSQErrorSchema):
            report("failed", error=response.text)
        else:
            report("published")


async def main() -> None:
    options = parse_arguments()
    client: Producer | Consumer
    if options.role == "producer":
        client = Producer(await ansq.create_writer([options.address], connection_options(options)))
    else:
        reader = await ansq.create_reader(
            options.topic,
            options.channel,
            options.address.split(",") if options.address else None,
            [options.lookupd] if options.lookupd else None,
            lookupd_poll_interval=1000,
            connection_options=connection_options(options),
        )
        client = Consumer(reader)
    commands: asyncio.Queue[Command] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    on_thread(lambda command: loop.call_soon_threadsafe(commands.put_nowait, command))
    op = ""
    while op != "close":
        command = await commands.get()
        await client.obey(command)
        op = command.op


if __name__ == "__main__":
    asyncio.run(main())
