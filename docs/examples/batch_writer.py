import signal
import sqlite3

from pyqd.client import ClosedError, Consumer

database = sqlite3.connect("events.db")
database.execute("CREATE TABLE IF NOT EXISTS events (id TEXT PRIMARY KEY, body BLOB)")
consumer = Consumer("events", "archive", nsqd="127.0.0.1:4150", max_in_flight=1000)
signal.signal(signal.SIGTERM, lambda *_: consumer.stop())

while True:
    try:
        batch = consumer.fetch(500)
    except ClosedError:
        break
    with database:
        rows = [(message.id, message.body) for message in batch]
        database.executemany("INSERT OR IGNORE INTO events VALUES (?, ?)", rows)
    consumer.finish_many(batch)

consumer.drain()
