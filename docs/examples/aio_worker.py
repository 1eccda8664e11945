import asyncio
import sys

from pyqd.client.aio import Consumer, Producer

consumer = Consumer("orders", "shipping", nsqd="127.0.0.1:4150")
producer = Producer("127.0.0.1:4150")


@consumer.handler(concurrency=100)
async def ship(message):
    await producer.publish("parcels", b"parcel for " + message.body)


async def main():
    async with producer:
        return await consumer.run()


sys.exit(asyncio.run(main()))
