"""Our own client of RocketMQ's remoting protocol: producers and consumers, for our brokers and for Java's.

`…Sync` are for code that blocks, the others for asyncio.
"""

from node.message_client.blocking import MessageConsumerSync, MessageProducerSync
from node.message_client.consumer import MessageConsumer
from node.message_client.errors import ClientError, Closed, NotSent, SendUnknown, Unavailable, WrongLoop
from node.message_client.outgoing import OutgoingMessage
from node.message_client.producer import MessageProducer, SendStatus, Sent
from node.message_client.taking import Received
from node.message_client.transactions import Decision, Ended, TransactionProducer

__all__ = [
    "ClientError",
    "Closed",
    "Decision",
    "Ended",
    "MessageConsumer",
    "MessageConsumerSync",
    "MessageProducer",
    "MessageProducerSync",
    "NotSent",
    "OutgoingMessage",
    "Received",
    "SendStatus",
    "SendUnknown",
    "Sent",
    "TransactionProducer",
    "Unavailable",
    "WrongLoop",
]
