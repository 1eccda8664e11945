from pyqd.client import Producer

with Producer("127.0.0.1:4150") as producer:
    message_id = producer.publish("orders", b"order 1")
    print("published", message_id)
