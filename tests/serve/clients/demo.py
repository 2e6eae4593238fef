"""The MRPC demo's client, many of them in one process: each draws pairs at random, asks, and counts what it got.

python demo.py PORT PAIRS.json CLIENTS CYCLE SEED RESULT.json"""

import json
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

BYTES, OPTIONAL = 12, 1


def message(name, *fields):
    file = descriptor_pb2.FileDescriptorProto(name=f"{name}.proto", package="mrpc", syntax="proto3")
    made = file.message_type.add(name=name)
    for number, field in enumerate(fields, 1):
        made.field.add(name=field, number=number, type=BYTES, label=OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"mrpc.{name}"))


def main(port, pairs, clients, cycle, seed, path):
    pairs = json.loads(Path(pairs).read_text())
    TextPair, YesNo = message("TextPair", "text_a", "text_b"), message("YesNo", "message", "prediction")

    def client(number):
        draw, answers = random.Random(f"{seed} {number}"), []
        with grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
            paraphrase = channel.unary_unary(
                "/mrpc.mrpc/paraphrase",
                request_serializer=TextPair.SerializeToString, response_deserializer=YesNo.FromString,
            )  # fmt: skip
            for _ in range(int(cycle)):
                row = draw.randrange(len(pairs))
                first, second = pairs[row]
                answer = paraphrase(TextPair(text_a=first.encode(), text_b=second.encode()))
                answers.append((row, answer.prediction.decode(), answer.message.decode()))
        return answers

    with ThreadPoolExecutor(int(clients)) as pool:
        Path(path).write_text(json.dumps(list(pool.map(client, range(int(clients))))))


if __name__ == "__main__":
    main(*sys.argv[1:])
