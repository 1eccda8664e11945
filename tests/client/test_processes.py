"""The client at the ends of processes: forks, the end of the interpreter, signals, gevent, and idle programs.

Each test runs a program in an interpreter of its own, in which warnings about resources are errors.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
import time
from typing import Any

import pytest

from tests.support.faces import Face
from tests.support.publish_broker import ok
from tests.support.server import REPOSITORY, wait_until

# Each test runs an interpreter.
pytestmark = pytest.mark.slow

WAIT_S = 30.0
HEAD = """
import asyncio, gc, logging, os, signal, sys, threading, time, warnings
from pyqd.client import ClosedError, Consumer, Producer, aio
address, topic = sys.argv[1:]
# In its debug mode asyncio warns of slow callbacks; every callback is slow on a busy machine.
logging.getLogger("asyncio").setLevel(logging.ERROR)
# Python 3.12 and newer warn of every fork beside threads.
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
"""


class Program(subprocess.Popen[str]):
    """An interpreter that runs a text. Warnings about resources are shown as "Exception ignored" by the interpreter."""

    def __init__(self, text, address, topic):
        options = ("-X", "dev", "-W", "error::ResourceWarning")
        super().__init__(
            [sys.executable, *options, "-c", text, address, topic],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
        )

    def end(self):
        """Wait for the end; return exit code and output. Raises: AssertionError for anything on standard error."""
        output, errors = self.communicate(timeout=WAIT_S)
        assert errors == ""
        return self.returncode, output.split()


@pytest.fixture
def head():
    """Begin of each program."""
    return HEAD


@pytest.fixture
def run(address, topic, head):
    """Function that starts a program."""
    started = []

    def start(text, broker_address=address):
        started.append(Program(head + textwrap.dedent(text), broker_address, topic))
        return started[-1]

    yield start
    for program in started:
        program.kill()
        program.communicate(timeout=WAIT_S)


@pytest.fixture
def face():
    """The test's own clients; those under test are in the program."""
    made = Face("blocking")
    yield made
    made.close()


@pytest.fixture
def publish(face, address, topic):
    producer = face.producer(address)
    return lambda *bodies: producer.publish_many(topic, bodies)


def bodies_of(face, address, topic, count):
    """Return that many bodies of a topic."""
    consumer = face.consumer(topic, nsqd=address, max_in_flight=2500, backoff=0.0)
    got: list[Any] = []
    while len(got) < count:
        messages = consumer.fetch(2500, WAIT_S)
        assert messages
        got += [message.body for message in messages]
        consumer.finish_many(messages)
    return sorted(got)


class TestEnd:
    def test_submitted_messages_are_published_before_the_program_ends(self, run, face, address, topic):
        program = run("""
            producer = Producer(address)
            for number in range(1000):
                producer.submit(topic, b"%03d" % number)
        """)
        assert program.end() == (0, [])
        assert bodies_of(face, address, topic, 1000) == [b"%03d" % number for number in range(1000)]

    def test_submitted_messages_of_asyncio_too(self, run, face, address, topic):
        program = run("""
            async def main():
                global producer
                producer = aio.Producer(address)
                for number in range(1000):
                    producer.submit(topic, b"%03d" % number)
            asyncio.run(main())
        """)
        assert program.end() == (0, [])
        assert len(bodies_of(face, address, topic, 1000)) == 1000

    @pytest.mark.parametrize("place", ['"127.0.0.1:1"', '"localhost:1"', 'lookupd="127.0.0.1:1"'])
    def test_without_a_broker_the_program_ends_soon_and_says_what_is_lost(self, run, topic, place):
        program = run(f"""
            producer = Producer({place})
            producer.submit(topic, b"x")
        """)
        started_s = time.monotonic()
        _, errors = program.communicate(timeout=WAIT_S)
        assert program.returncode == 0
        assert "1 messages that no broker has acknowledged" in errors
        assert "Traceback" not in errors
        # Two seconds for the broker to come back.
        assert time.monotonic() - started_s < 10

    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
    def test_a_program_may_publish_when_it_ends(self, run, face, address, topic, host):
        program = run(
            """
            import atexit
            producer = Producer(address)
            atexit.register(lambda: producer.publish(topic, b"the end"))
            """,
            address.replace("127.0.0.1", host),
        )
        assert program.end() == (0, [])
        assert bodies_of(face, address, topic, 1) == [b"the end"]

    @pytest.mark.parametrize(
        "text",
        [
            """
            consumer = Consumer(topic, "c", nsqd=address, max_in_flight=5)
            message = consumer.fetch(1)[0]
            print(message.body.decode(), flush=True)
            """,
            """
            async def main():
                global consumer
                consumer = aio.Consumer(topic, "c", nsqd=address, max_in_flight=5)
                message = (await consumer.fetch(1))[0]
                print(message.body.decode(), flush=True)
            asyncio.run(main())
            """,
            """
            consumer = Consumer(topic, "c", nsqd=address, max_in_flight=5)
            begun = threading.Event()
            @consumer.handler()
            def handle(message):
                print(message.body.decode(), flush=True)
                begun.set()
                time.sleep(60)
            consumer.start()
            begun.wait()
            """,
        ],
        ids=["fetched", "fetched by asyncio", "in a handler's thread"],
    )
    def test_messages_in_flight_come_again(self, run, face, publish, address, topic, text):
        publish(b"0", b"1", b"2")
        code, output = run(text).end()
        assert code == 0
        assert len(output) == 1
        assert bodies_of(face, address, topic, 3) == [b"0", b"1", b"2"]

    def test_a_closed_client_leaves_nothing(self, run, publish):
        publish(b"x")
        program = run("""
            before = len(os.listdir("/proc/self/fd"))
            for _ in range(20):
                with Producer(address) as producer, Consumer(topic, "c", nsqd=address) as consumer:
                    producer.publish(topic, b"x")
                    consumer.fetch(1)[0].finish()
            print(len(os.listdir("/proc/self/fd")) - before, threading.active_count())
        """)
        assert program.end() == (0, ["0", "1"])

    def test_a_closed_client_of_asyncio_leaves_nothing(self, run, publish):
        publish(b"x")
        program = run("""
            async def main():
                before = len(os.listdir("/proc/self/fd"))
                for _ in range(20):
                    async with aio.Producer(address) as producer, aio.Consumer(topic, "c", nsqd=address) as consumer:
                        await producer.publish(topic, b"x")
                        (await consumer.fetch(1))[0].finish()
                tasks = len(asyncio.all_tasks())
                print(len(os.listdir("/proc/self/fd")) - before, threading.active_count(), tasks)
            asyncio.run(main())
        """)
        assert program.end() == (0, ["0", "1", "1"])

    @pytest.mark.parametrize(
        "make", ["Producer(address)", 'Consumer(topic, "c", nsqd=address)'], ids=["producer", "consumer"]
    )
    def test_a_forgotten_client_warns_and_ends_its_thread(self, run, make):
        program = run(f"""
            import warnings
            warnings.simplefilter("always")
            before = len(os.listdir("/proc/self/fd"))
            client = {make}
            client.publish(topic, b"x") if isinstance(client, Producer) else client.fetch(1, 0.1)
            assert threading.active_count() == 2
            with warnings.catch_warnings(record=True) as caught:
                del client
                gc.collect()
            deadline = time.monotonic() + 20
            while threading.active_count() > 1 and time.monotonic() < deadline:
                time.sleep(0.01)
            print(len(os.listdir("/proc/self/fd")) - before, threading.active_count(), caught[0].category.__name__)
        """)
        assert program.end() == (0, ["0", "1", "ResourceWarning"])


class TestFork:
    def test_a_child_publishes_by_its_own_connection(self, run, face, address, topic):
        program = run("""
            producer = Producer(address)
            producer.publish(topic, b"before")
            child = os.fork()
            if not child:
                opened = [open(os.devnull) for _ in range(10)]
                producer.publish(topic, b"child")
                gc.collect()
                for each in opened:
                    each.read()
                    each.close()
                producer.close()
                os._exit(0)
            producer.publish(topic, b"parent")
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            producer.publish(topic, b"after")
            producer.close()
        """)
        assert program.end() == (0, ["0"])
        assert bodies_of(face, address, topic, 4) == [b"after", b"before", b"child", b"parent"]

    def test_what_the_parent_has_submitted_is_published_once(self, run, face, address, topic):
        program = run("""
            producer = Producer(address)
            producer.publish(topic, b"first")
            for number in range(500):
                producer.submit(topic, b"%03d" % number)
            child = os.fork()
            if not child:
                producer.publish(topic, b"child")
                producer.close()
                os._exit(0)
            os.waitpid(child, 0)
            producer.close()
        """)
        assert program.end() == (0, [])
        expected = sorted([b"first", b"child", *(b"%03d" % number for number in range(500))])
        assert bodies_of(face, address, topic, 502) == expected

    def test_a_future_of_the_parent_fails_in_a_child(self, run, scripted):
        answered = threading.Event()

        def answer(_publish):
            assert answered.wait(WAIT_S)
            return b"\0\0\0\6\0\0\0\0OK"

        scripted.answer = answer
        text = """
            producer = Producer(address)
            future = producer.submit(topic, b"x")
            child = os.fork()
            if not child:
                print(type(future.exception(10)).__name__, flush=True)
                os._exit(0)
            os.waitpid(child, 0)
            producer.close()
        """
        program = run(text, scripted.address)
        line = program.stdout.readline()
        answered.set()
        assert (line, program.end()) == ("ClosedError\n", (0, []))

    def test_many_threads_publish_during_forks(self, run, face, address, topic):
        program = run("""
            producer = Producer(address)
            def publish(thread):
                for number in range(100):
                    producer.publish(topic, b"%d-%03d" % (thread, number))
            threads = [threading.Thread(target=publish, args=(number,)) for number in range(4)]
            for thread in threads:
                thread.start()
            for number in range(5):
                child = os.fork()
                if not child:
                    producer.publish(topic, b"child-%d" % number)
                    os._exit(0)
                print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            for thread in threads:
                thread.join()
            producer.close()
        """)
        _, errors = program.communicate(timeout=WAIT_S)
        # Python 3.12 warns of forks in programs with threads.
        assert "Traceback" not in errors
        assert program.returncode == 0
        assert len(set(bodies_of(face, address, topic, 405))) == 405

    def test_a_child_s_consumer_refuses(self, run, face, publish, address, topic):
        publish(b"0", b"1", b"2")
        program = run("""
            consumer = Consumer(topic, "c", nsqd=address, max_in_flight=3)
            message = consumer.fetch(1)[0]
            child = os.fork()
            if not child:
                refused = 0
                for call in (lambda: consumer.fetch(1, 1), lambda: list(consumer)):
                    try:
                        call()
                    except ClosedError as error:
                        assert "forked" in str(error)
                        refused += 1
                message.finish()
                consumer.close()
                os._exit(refused)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), consumer.stats()["in_flight"])
            message.requeue(0)
            consumer.close()
        """)
        assert program.end() == (0, ["2", "3"])
        assert bodies_of(face, address, topic, 3) == [b"0", b"1", b"2"]

    def test_a_handler_that_forks(self, run, publish, broker, topic):
        publish(b"x")
        program = run("""
            consumer = Consumer(topic, "c", nsqd=address)
            @consumer.handler()
            def handle(message):
                child = os.fork()
                if not child:
                    # The child leaves the handler too, as after a forgotten os._exit().
                    return
                os.waitpid(child, 0)
                print("parent", flush=True)
                consumer.stop()
            sys.exit(consumer.run())
        """)
        output, errors = program.communicate(timeout=WAIT_S)
        assert (program.returncode, output) == (0, "parent\n"), errors
        broker.wait_for_channel(topic, "c", depth=0, in_flight_count=0, requeue_count=0, timeout_count=0)

    def test_processes_of_multiprocessing_publish_with_the_producer_of_their_parent(self, run, face, address, topic):
        program = run("""
            import multiprocessing
            producer = Producer(address)
            def work(number):
                producer.publish(topic, b"%d" % number)
            producer.publish(topic, b"parent")
            with multiprocessing.get_context("fork").Pool(2) as pool:
                pool.map(work, range(10))
            producer.close()
        """)
        _, errors = program.communicate(timeout=WAIT_S)
        assert program.returncode == 0, errors
        assert bodies_of(face, address, topic, 11) == sorted([b"parent", *(b"%d" % number for number in range(10))])


RUN_BLOCKING = """
consumer = Consumer(topic, "c", nsqd=address, max_in_flight=5)
@consumer.handler()
def handle(message):
    print("begun", flush=True)
    {work}
sys.exit(consumer.run(drain_timeout={timeout}))
"""
RUN_ASYNCIO = """
consumer = aio.Consumer(topic, "c", nsqd=address, max_in_flight=5)
@consumer.handler()
async def handle(message):
    print("begun", flush=True)
    {work}
sys.exit(asyncio.run(consumer.run(drain_timeout={timeout})))
"""
ENDLESS = pytest.mark.parametrize(
    ("text", "sleep"),
    [(RUN_BLOCKING, "time.sleep(60)"), (RUN_ASYNCIO, "await asyncio.sleep(60)")],
    ids=["blocking", "asyncio"],
)

TWO_BLOCKING = """
import concurrent.futures
former = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
first, second = (Consumer(topic, name, nsqd=address) for name in "ab")
for consumer in (first, second):
    consumer.handler()(print)
with concurrent.futures.ThreadPoolExecutor() as pool:
    running = pool.submit(first.run)
    code = second.run()
    print([code, running.result()])
print((signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == former)
"""
TWO_ASYNCIO = """
async def main():
    former = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    consumers = [aio.Consumer(topic, name, nsqd=address) for name in "ab"]
    for consumer in consumers:
        consumer.handler()(print)
    print(await asyncio.gather(*(consumer.run() for consumer in consumers)))
    print((signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == former)
asyncio.run(main())
"""


FORK = """
import multiprocessing
fork = multiprocessing.get_context("fork")
def begin_and_sleep(begun):
    begun.set()
    time.sleep(60)
def run_consumer(begun):
    consumer = Consumer(topic + "_of_child", "c", nsqd=address)
    consumer.handler()(print)
    threading.Timer(0.5, begun.set).start()
    sys.exit(10 + consumer.run())
def code_of(target, waits):
    begun = fork.Event()
    child = fork.Process(target=target, args=(begun,))
    child.start()
    if waits:
        begun.wait(10)
    child.terminate()
    child.join(10)
    code = child.exitcode
    child.kill()
    return code
def use_children():
    print([code_of(begin_and_sleep, True), code_of(begin_and_sleep, False), code_of(run_consumer, True)])
    os.kill(os.getpid(), signal.SIGTERM)
"""


PUBLISH_INTERRUPTED = """
    with Producer(address) as producer:
        try:
            producer.publish(topic, b"x")
        except KeyboardInterrupt:
            print("interrupted")
        print(producer.publish(topic, b"y"))
"""


class TestSignals:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    @pytest.mark.parametrize(
        ("text", "sleep"),
        [(RUN_BLOCKING, "time.sleep({})"), (RUN_ASYNCIO, "await asyncio.sleep({})")],
        ids=["blocking", "asyncio"],
    )
    def test_a_signal_drains_and_exits_with_0(self, run, publish, broker, topic, number, text, sleep):
        publish(b"x")
        program = run(text.format(work=sleep.format(0.5), timeout=30))
        assert program.stdout.readline() == "begun\n"
        program.send_signal(number)
        assert program.end() == (0, [])
        broker.wait_for_channel(topic, "c", depth=0, in_flight_count=0, requeue_count=0)

    @ENDLESS
    def test_a_handler_that_does_not_end_gives_1(self, run, face, publish, address, topic, text, sleep):
        publish(b"x")
        program = run(text.format(work=sleep, timeout=0.2))
        assert program.stdout.readline() == "begun\n"
        program.send_signal(signal.SIGTERM)
        assert program.end() == (1, [])
        assert bodies_of(face, address, topic, 1) == [b"x"]

    def test_idle_consumers_end_too(self, run, broker, topic):
        program = run(RUN_BLOCKING.format(work="pass", timeout=30))
        wait_until(lambda: broker.channel(topic, "c") is not None, "the consumer is there")
        program.send_signal(signal.SIGTERM)
        assert program.end() == (0, [])

    @ENDLESS
    def test_a_second_signal_interrupts(self, run, publish, text, sleep):
        publish(b"x")
        program = run(text.format(work=sleep, timeout=60))
        assert program.stdout.readline() == "begun\n"
        # The first one is handled when it has restored the handler of the second.
        deadline_s = time.monotonic() + WAIT_S
        while program.poll() is None and time.monotonic() < deadline_s:
            program.send_signal(signal.SIGTERM)
            time.sleep(0.05)
        assert program.wait(WAIT_S) == -signal.SIGTERM

    @pytest.mark.parametrize("text", [TWO_BLOCKING, TWO_ASYNCIO], ids=["blocking", "asyncio"])
    def test_a_signal_ends_all_consumers_that_run(self, run, broker, topic, text):
        program = run(text)
        wait_until(lambda: all(broker.channel(topic, name) for name in "ab"), "the consumers are there")
        program.send_signal(signal.SIGTERM)
        assert program.end() == (0, ["[0,", "0]", "True"])

    @pytest.mark.parametrize("text", [RUN_BLOCKING, RUN_ASYNCIO], ids=["blocking", "asyncio"])
    def test_a_child_of_a_handler_ends_by_sigterm_unless_it_runs_a_consumer_too(self, run, publish, text):
        publish(b"x")
        program = run(FORK + text.format(work="use_children()", timeout=30))
        assert program.end() == (0, ["begun", "[-15,", "-15,", "10]"])

    def test_keyboard_interrupt_ends_a_blocking_wait(self, run, broker, topic):
        program = run("""
            with Consumer(topic, "c", nsqd=address) as consumer:
                try:
                    for message in consumer:
                        pass
                except KeyboardInterrupt:
                    print("interrupted")
        """)
        wait_until(lambda: broker.channel(topic, "c") is not None, "the consumer is there")
        program.send_signal(signal.SIGINT)
        assert program.end() == (0, ["interrupted"])

    def test_keyboard_interrupt_in_a_loop_gives_all_messages_back_at_once(self, run, publish, broker, topic):
        publish(b"1", b"2", b"3")
        program = run("""
            from contextlib import suppress
            with suppress(KeyboardInterrupt), Consumer(topic, "c", nsqd=address, max_in_flight=3) as consumer:
                for message in consumer:
                    with message:
                        print("begun", flush=True)
                        time.sleep(60)
        """)
        assert program.stdout.readline() == "begun\n"
        broker.wait_for_channel(topic, "c", in_flight_count=3)
        program.send_signal(signal.SIGINT)
        assert program.end() == (0, [])
        broker.wait_for_channel(topic, "c", depth=3, in_flight_count=0, requeue_count=3, client_count=0)

    def test_keyboard_interrupt_ends_a_publish_and_leaves_the_producer_usable(self, run, scripted):
        # The first message is not answered; the second one brings both answers.
        scripted.answer = lambda publish: b"" if publish.number == 1 else ok(publish) * 2
        program = run(PUBLISH_INTERRUPTED, scripted.address)
        scripted.wait(lambda: len(scripted.published) == 1, "the message is there")
        program.send_signal(signal.SIGINT)
        assert program.end() == (0, ["interrupted", "None"])


class TestGevent:
    @pytest.fixture
    def head(self):
        return "from gevent import monkey\nmonkey.patch_all()\n" + HEAD

    def test_greenlets_share_a_producer_and_a_consumer(self, run):
        program = run("""
            import gevent
            producer = Producer(address)
            def publish():
                for _ in range(20):
                    producer.publish(topic, b"x")
            jobs = [gevent.spawn(publish) for _ in range(20)]
            gevent.joinall(jobs, timeout=20, raise_error=True)
            futures = [producer.submit(topic, b"x") for _ in range(100)]
            assert producer.flush(10)
            ticks = 0
            def tick():
                global ticks
                while True:
                    gevent.sleep(0.01)
                    ticks += 1
            ticker = gevent.spawn(tick)
            consumer = Consumer(topic, "c", nsqd=address, max_in_flight=50)
            got = []
            def consume():
                for message in consumer:
                    with message:
                        got.append(message.body)
                        gevent.sleep(0)
            workers = [gevent.spawn(consume) for _ in range(5)]
            with gevent.Timeout(20):
                while len(got) < 500:
                    gevent.sleep(0.01)
            assert consumer.fetch(1, 0.3) == []
            assert consumer.drain(10)
            gevent.joinall(workers, timeout=10, raise_error=True)
            # Waiting blocks one greenlet, and no other.
            print(len(got), ticks > 10)
            ticker.kill()
            producer.close()
        """)
        assert program.end() == (0, ["500", "True"])


class TestIdle:
    """CPU time that an idle program takes in two seconds. Bounds are many times what was measured."""

    IDLE = """
        time.sleep(0.5)
        before = time.process_time()
        time.sleep(2)
        print(round((time.process_time() - before) * 1000))
    """

    def cpu_ms(self, run, text):
        code, output = run(textwrap.dedent(text)).end()
        assert code == 0
        return int(output[-1])

    def test_an_idle_producer_takes_hardly_any_cpu_time(self, run):
        text = 'producer = Producer(address)\nproducer.publish(topic, b"x")\n' + textwrap.dedent(self.IDLE)
        assert self.cpu_ms(run, text + "producer.close()\n") < 50

    def test_a_waiting_consumer_takes_hardly_any_cpu_time(self, run):
        text = """
            consumer = Consumer(topic, "c", nsqd=address)
            before = time.process_time()
            assert consumer.fetch(1, 2) == []
            print(round((time.process_time() - before) * 1000))
            consumer.close()
        """
        # The time to connect counts.
        assert self.cpu_ms(run, text) < 100

    def test_an_idle_consumer_with_a_handler_takes_hardly_any_cpu_time(self, run):
        text = 'consumer = Consumer(topic, "c", nsqd=address)\nconsumer.handler(4)(print)\nconsumer.start()\n'
        assert self.cpu_ms(run, text + textwrap.dedent(self.IDLE) + "consumer.close()\n") < 50

    def test_a_producer_without_a_broker_takes_hardly_any_cpu_time(self, run):
        text = 'producer = Producer("127.0.0.1:1")\nproducer.submit(topic, b"x")\n' + textwrap.dedent(self.IDLE)
        program = run(text + "os._exit(0)\n")
        output, _ = program.communicate(timeout=WAIT_S)
        assert int(output.split()[-1]) < 100

    def test_idle_clients_of_asyncio_take_hardly_any_cpu_time(self, run):
        text = """
            async def main():
                async with aio.Producer(address) as producer, aio.Consumer(topic, "c", nsqd=address) as consumer:
                    await producer.publish(topic, b"x")
                    (await consumer.fetch(1))[0].finish()
                    waiting = asyncio.create_task(consumer.fetch(1, 3))
                    await asyncio.sleep(0.3)
                    before = time.process_time()
                    await asyncio.sleep(2)
                    print(round((time.process_time() - before) * 1000))
                    waiting.cancel()
            asyncio.run(main())
        """
        assert self.cpu_ms(run, text) < 100
