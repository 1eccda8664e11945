"""Behaviour that only the asyncio face has: tasks, cancellation, a loop that handlers block, loops that come and go."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
from typing import Any

import pytest

from pyqd.client import BufferFullError, ClosedError, RetryPolicy, SettingError
from pyqd.client.aio import Consumer, Producer
from tests.support.server import wait_until

WAIT_S = 20.0


def run(coroutine):
    """Run a coroutine; no task and no thread may be left."""

    async def checked():
        result = await asyncio.wait_for(coroutine, WAIT_S)
        # Tasks that were cancelled end in the next passes.
        for _ in range(3):
            await asyncio.sleep(0)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left
        return result

    result = asyncio.run(checked())
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("pyqd ")] == []
    return result


class TestProducer:
    def test_tasks_share_a_connection(self, address, topic, broker):
        async def main():
            async with Producer(address) as producer:
                await asyncio.gather(*(producer.publish(topic, b"%d" % number) for number in range(1000)))
                return producer.stats()["published"]

        assert run(main()) == 1000
        assert broker.topic(topic)["message_count"] == 1000

    def test_a_cancelled_publish_is_not_pending(self, scripted, topic):
        scripted.answer = lambda _publish: b""

        async def main():
            async with Producer(scripted.address) as producer:
                task = asyncio.create_task(producer.publish(topic, b"x"))
                await asyncio.to_thread(scripted.wait, lambda: scripted.published, "a publish")
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                return producer.stats()["pending"]

        assert run(main()) == 0

    def test_a_publish_that_waits_for_a_connection_can_be_cancelled(self, topic):
        async def main():
            async with Producer("127.0.0.1:1") as producer:
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(producer.publish(topic, b"x"), 0.1)
                return producer.stats()["pending"]

        assert run(main()) == 0

    def test_close_ends_what_is_pending(self, scripted, topic):
        scripted.answer = lambda _publish: b""

        async def main():
            producer = Producer(scripted.address)
            tasks = [asyncio.create_task(producer.publish(topic, b"x")) for _ in range(5)]
            await asyncio.to_thread(scripted.wait, lambda: len(scripted.published) == 5, "publishes")
            await producer.close(timeout=0.05)
            return [type(result) for result in await asyncio.gather(*tasks, return_exceptions=True)]

        assert run(main()) == [ClosedError] * 5

    @pytest.mark.slow
    def test_close_logs_a_line_for_futures_that_nobody_awaits(self, scripted, topic, caplog):
        scripted.answer = lambda _publish: b""

        async def main():
            producer = Producer(scripted.address)
            futures = [producer.submit(topic, b"x") for _ in range(5)]
            await asyncio.to_thread(scripted.wait, lambda: len(scripted.published) == 5, "publishes")
            await producer.close(timeout=0.05)
            # asyncio logs at the end of a future whose error nobody has seen.
            assert all(future.done() for future in futures)
            futures.clear()
            gc.collect()

        run(main())
        assert [record.getMessage() for record in caplog.records] == [
            "closed with 5 messages that no broker has acknowledged"
        ]

    def test_submit_refuses_while_the_buffer_is_full_and_publish_waits(self, scripted, topic):
        released = threading.Event()

        def answer(publish):
            released.wait(WAIT_S)
            return b"\0\0\0\6\0\0\0\0OK"

        scripted.answer = answer

        async def main():
            async with Producer(scripted.address, max_pending_bytes=1000) as producer:
                producer.submit(topic, bytes(2000))
                with pytest.raises(BufferFullError):
                    producer.submit(topic, b"x")
                waiting = [asyncio.create_task(producer.publish(topic, b"%d" % number)) for number in range(5)]
                await asyncio.sleep(0.05)
                assert len(scripted.published) <= 1
                released.set()
                await asyncio.gather(*waiting)

        run(main())
        assert len(scripted.published) == 6

    def test_callbacks_of_futures_may_publish(self, address, topic, broker):
        async def main():
            async with Producer(address) as producer:
                more = []
                future = producer.submit(topic, b"first")
                future.add_done_callback(lambda _: more.append(producer.submit(topic, b"second")))
                await future
                await producer.flush()
                await asyncio.sleep(0)
                return await asyncio.gather(*more)

        assert len(run(main())) == 1


class TestLoops:
    def test_without_a_loop_the_error_says_so(self, address, topic):
        producer = Producer(address)
        with pytest.raises(SettingError, match=r"no event loop runs: .*asyncio\.run"):
            producer.submit(topic, b"x")
        asyncio.run(producer.close())

    def test_another_loop_is_refused(self, address, topic):
        async def first():
            producer = Producer(address)
            await producer.publish(topic, b"x")
            return producer

        producer = asyncio.run(first())

        async def second():
            with pytest.raises(SettingError, match="event loop"):
                await producer.publish(topic, b"x")

        asyncio.run(second())
        producer._at_exit()

    def test_a_thread_without_the_loop_is_refused(self, address, topic):
        async def main():
            async with Producer(address) as producer:
                await producer.publish(topic, b"x")

                def elsewhere():
                    with pytest.raises(SettingError, match="event loop"):
                        asyncio.run(producer.publish(topic, b"x"))

                await asyncio.to_thread(elsewhere)

        run(main())

    def test_clients_may_be_made_before_the_loop_runs(self, address, topic):
        producer = Producer(address)

        async def main():
            await producer.publish(topic, b"x")
            await producer.close()

        run(main())

    @pytest.mark.slow
    def test_a_forgotten_producer_warns(self, address, topic):
        async def main():
            producer = Producer(address)
            await producer.publish(topic, b"x")
            holder = [producer]
            del producer
            with pytest.warns(ResourceWarning, match="not closed"):
                holder.clear()
            # The loop goes on without it.
            async with Producer(address) as another:
                await another.publish(topic, b"y")

        asyncio.run(main())
        wait_until(
            lambda: not [each for each in threading.enumerate() if each.name.startswith("pyqd ")], "its thread ends"
        )


class TestBlockedLoop:
    """The broker's timeout is a second."""

    @pytest.mark.slow
    def test_messages_are_touched(self, address, topic, broker):
        async def main():
            async with Producer(address) as producer, Consumer(topic, "c", nsqd=address, backoff=0.0) as consumer:
                await producer.publish(topic, b"x")
                (message,) = await consumer.fetch(1, WAIT_S)
                time.sleep(2.5)
                message.finish()
                assert await consumer.drain(WAIT_S) is True

        run(main())
        assert broker.channel(topic, "c")["timeout_count"] == 0
        assert broker.channel(topic, "c")["in_flight_count"] == 0

    @pytest.mark.slow
    def test_heartbeats_are_answered(self, address, topic, broker):
        async def main():
            async with Consumer(topic, "c", nsqd=address, heartbeat_interval=1.0, client_id="blocked") as consumer:
                assert await consumer.fetch(1, 0.2) == []
                # nsqd closes a connection after two heartbeats without an answer.
                time.sleep(3.5)
                clients = broker.channel(topic, "c")["clients"]
                assert [client["client_id"] for client in clients] == ["blocked"]
                stats = consumer.stats()["brokers"][address]
                assert stats == {"connected": True, "breaker": "closed", "error": None}

        run(main())

    @pytest.mark.slow
    def test_finish_in_a_thread_is_sent_while_the_loop_is_blocked(self, address, topic, broker):
        async def main():
            async with Producer(address) as producer, Consumer(topic, "c", nsqd=address) as consumer:
                await producer.publish(topic, b"x")
                (message,) = await consumer.fetch(1, WAIT_S)
                threading.Timer(0.05, message.finish).start()
                deadline_s = time.monotonic() + WAIT_S
                while broker.channel(topic, "c")["in_flight_count"] and time.monotonic() < deadline_s:
                    time.sleep(0.02)
                assert broker.channel(topic, "c")["in_flight_count"] == 0

        run(main())


class TestConsumer:
    def test_cancelled_calls_leave_nothing_and_lose_no_message(self, address, topic):
        async def main():
            async with Producer(address) as producer, Consumer(topic, "c", nsqd=address) as consumer:
                for _ in range(50):
                    with pytest.raises(asyncio.TimeoutError):
                        await asyncio.wait_for(consumer.fetch(), 0.001)
                watcher_count = len(consumer._driver._watchers)
                await producer.publish(topic, b"x")
                (message,) = await consumer.fetch(1, WAIT_S)
                message.finish()
                return watcher_count

        assert run(main()) == 0

    def test_a_plain_function_may_return_anything(self, address, topic, broker):
        async def main():
            async with Producer(address) as producer:
                await producer.publish(topic, b"x")
            consumer = Consumer(topic, "c", nsqd=address)

            @consumer.handler()
            def handle(_message):
                consumer.stop()
                return True

            return await consumer.run()

        assert run(main()) == 0
        broker.wait_for_channel(topic, "c", depth=0, in_flight_count=0, deferred_count=0)

    def test_an_error_that_lasts_is_logged_by_a_started_consumer(self, daemon, topic, caplog):
        async def main():
            async with Consumer(topic, "c", nsqd=f"127.0.0.1:{daemon.http_port}") as consumer:
                consumer.handler(concurrency=2)(lambda _message: asyncio.sleep(0))
                consumer.start()
                while not consumer._consumption.is_stopping:
                    await asyncio.sleep(0.01)

        run(main())
        assert f"consumer of {topic}/c ends: " in caplog.text
        assert "this is an HTTP port" in caplog.text

    def test_several_tasks_iterate(self, address, topic):
        async def main():
            got: list[Any] = []

            async def iterate(consumer):
                async for message in consumer:
                    async with message:
                        got.append(message.body)
                        await asyncio.sleep(0)

            async with Producer(address) as producer, Consumer(topic, "c", nsqd=address, max_in_flight=20) as consumer:
                tasks = [asyncio.create_task(iterate(consumer)) for _ in range(5)]
                await producer.publish_many(topic, [b"%d" % number for number in range(300)])
                while len(got) < 300:
                    await asyncio.sleep(0.01)
                assert not any(task.done() for task in tasks)
                assert await consumer.drain() is True
                await asyncio.gather(*tasks)
            return sorted(got)

        assert run(main()) == sorted(b"%d" % number for number in range(300))

    @pytest.mark.slow
    def test_other_tasks_run_while_messages_come(self, address, topic):
        async def main():
            async with (
                Producer(address) as producer,
                Consumer(topic, "c", nsqd=address, max_in_flight=2500) as consumer,
            ):
                await producer.publish_many(topic, [b"x"] * 5000)
                ticks = []

                async def tick():
                    while True:
                        ticks.append(1)
                        await asyncio.sleep(0)

                ticker = asyncio.create_task(tick())
                count = 0
                async for message in consumer:
                    message.finish()
                    count += 1
                    if count == 5000:
                        break
                ticker.cancel()
                return len(ticks)

        # Each 64 messages at least.
        assert run(main()) >= 5000 // 64

    def test_a_cancelled_task_gives_its_message_back(self, address, topic):
        async def main():
            async with Producer(address) as producer, Consumer(topic, "c", nsqd=address, backoff=0.0) as consumer:
                await producer.publish(topic, b"x")
                begun = asyncio.Event()

                async def work():
                    async for message in consumer:
                        async with message:
                            begun.set()
                            await asyncio.sleep(60)

                task = asyncio.create_task(work())
                await begun.wait()
                task.cancel()
                await asyncio.wait([task])
                (message,) = await consumer.fetch(1, WAIT_S)
                assert message.attempts == 2
                message.finish()
                assert await consumer.drain()

        run(main())

    def test_handlers_that_never_wait_do_not_hold_the_loop(self, address, topic):
        async def main():
            consumer = Consumer(topic, "c", nsqd=address, max_in_flight=500)
            handled = []

            @consumer.handler(concurrency=2)
            async def handle(message):
                handled.append(message.body)

            async with Producer(address) as producer:
                await producer.publish_many(topic, [b"x"] * 2000)
                running = asyncio.create_task(consumer.run())
                while len(handled) < 2000:
                    await asyncio.sleep(0)
                consumer.stop()
                return await running

        assert run(main()) == 0

    @pytest.mark.slow
    def test_close_cancels_handlers_and_their_messages_come_again(self, address, topic):
        async def main():
            consumer = Consumer(topic, "c", nsqd=address)
            begun, ended = asyncio.Event(), []

            @consumer.handler()
            async def handle(message):
                begun.set()
                try:
                    await asyncio.sleep(60)
                finally:
                    ended.append(message.body)

            async with Producer(address) as producer:
                await producer.publish(topic, b"x")
                consumer.start()
                await begun.wait()
                await consumer.close()
                assert ended == [b"x"]
                async with Consumer(topic, "c", nsqd=address) as second:
                    (message,) = await second.fetch(1, WAIT_S)
                    assert message.attempts == 2
                    message.finish()

        run(main())

    def test_a_cancelled_run_closes_the_consumer(self, address, topic):
        async def main():
            consumer = Consumer(topic, "c", nsqd=address)
            begun, ended = asyncio.Event(), []

            @consumer.handler()
            async def handle(message):
                begun.set()
                try:
                    await asyncio.sleep(60)
                finally:
                    ended.append(message.body)

            async with Producer(address) as producer:
                await producer.publish(topic, b"x")
                running = asyncio.create_task(consumer.run())
                await begun.wait()
                running.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await running
            assert ended == [b"x"]
            with pytest.raises(ClosedError):
                await consumer.fetch()

        run(main())

    @pytest.mark.parametrize("end", ["close", "drain"])
    def test_a_handler_may_end_its_consumer(self, address, topic, end):
        async def main():
            consumer = Consumer(topic, "c", nsqd=address)

            @consumer.handler(concurrency=3)
            async def handle(message):
                message.finish()
                await getattr(consumer, end)()

            async with Producer(address) as producer:
                await producer.publish(topic, b"x")
                return await consumer.run()

        assert run(main()) == 0

    def test_a_handler_that_awaits_a_cancelled_task_has_failed(self, address, topic, caplog):
        async def main():
            retry = RetryPolicy(max_attempts=1, delay=0.01, dead_letter_topic=f"{topic}-failed")
            consumer = Consumer(topic, "c", nsqd=address, retry=retry, backoff=0.0)

            @consumer.handler()
            async def handle(message):
                if message.body == b"bad":
                    task = asyncio.create_task(asyncio.sleep(60))
                    task.cancel()
                    await task
                consumer.stop()

            async with Producer(address) as producer, Consumer(f"{topic}-failed", "c", nsqd=address) as failed:
                await producer.publish(topic, b"bad")
                await producer.publish(topic, b"good")
                code = await consumer.run()
                (message,) = await failed.fetch(1, WAIT_S)
                message.finish()
                return code, message.body

        assert run(main()) == (0, b"bad")
        assert "the handler has awaited a task that was cancelled" in caplog.text

    def test_system_exit_in_a_handler_ends_the_loop_and_the_message_comes_again(self, address, topic, caplog):
        async def main():
            consumer = Consumer(topic, "c", nsqd=address, retry=RetryPolicy(delay=0.01))

            @consumer.handler()
            async def handle(message):
                raise SystemExit(3)

            async with Producer(address) as producer:
                await producer.publish(topic, b"x")
            try:
                await consumer.run()
            finally:
                await consumer.close()

        with caplog.at_level(logging.CRITICAL), pytest.raises(SystemExit):
            asyncio.run(main())

        async def after():
            async with Consumer(topic, "c", nsqd=address) as consumer:
                (message,) = await consumer.fetch(1, WAIT_S)
                # The consumer that ends may get it once more, and gives it back.
                assert message.attempts >= 2
                message.finish()

        run(after())
