import sys

from pyqd.client import Consumer, RetryPolicy

consumer = Consumer("orders", "email", nsqd="127.0.0.1:4150", retry=RetryPolicy(delay=1.0))


@consumer.handler(concurrency=20)
def send_mail(message):
    print(f"mail for {message.body}, attempt {message.attempts}", flush=True)


sys.exit(consumer.run())
