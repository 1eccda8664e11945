import sys
from datetime import datetime, timedelta, timezone

from pyqd.client import Consumer, Producer, Requeue

INTERVAL = timedelta(hours=1)


def next_run() -> datetime:
    """Return the next multiple of the interval, by the clock."""
    now = datetime.now(timezone.utc)
    return now + INTERVAL - (now - datetime.min.replace(tzinfo=timezone.utc)) % INTERVAL


def main() -> None:
    consumer = Consumer("reports", "hourly", nsqd="127.0.0.1:4150")

    @consumer.handler()
    def report(_):
        print("report at", datetime.now(timezone.utc), flush=True)
        raise Requeue(next_run() - datetime.now(timezone.utc))

    sys.exit(consumer.run())


def begin() -> None:
    """Publish the message that stands for the job. Done once, when the job is set up."""
    with Producer("127.0.0.1:4150") as producer:
        producer.publish("reports", b"hourly", at=next_run())


if __name__ == "__main__":
    begin() if "--begin" in sys.argv else main()
