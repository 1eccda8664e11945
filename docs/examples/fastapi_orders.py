from contextlib import asynccontextmanager
from datetime import timedelta

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from pyqd.client import ClientError
from pyqd.client.aio import Consumer, Producer


class Order(BaseModel):
    number: int
    customer: str


@asynccontextmanager
async def lifespan(app: FastAPI):
    async with Producer("127.0.0.1:4150", codec="json", timeout=5.0) as app.state.producer:
        consumer = Consumer("reminders", "web", nsqd="127.0.0.1:4150", codec=Order)
        app.state.reminded = []

        @consumer.handler(concurrency=10)
        async def remind(message):
            app.state.reminded.append(message.value.number)

        consumer.start()
        yield
        await consumer.drain(10.0)


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=202)
async def create_order(order: Order):
    producer = app.state.producer
    try:
        message_id = await producer.publish("orders", order.model_dump())
        await producer.publish("reminders", order.model_dump(), delay=timedelta(milliseconds=100))
    except ClientError as error:
        raise HTTPException(503, "orders cannot be taken at present") from error
    return {"message_id": message_id}


@app.get("/reminded")
async def reminded() -> list[int]:
    return app.state.reminded
