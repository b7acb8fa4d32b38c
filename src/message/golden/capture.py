#!/usr/bin/env python3
"""Captures golden records: sends to a 5.4.0 reference broker and writes down what it stored.

    capture.py OUT_DIR BROKER_PORT

Each NAME.sent.hex is the properties text as sent, NAME.stored.hex the record as pulled. Members of the batch have no
"sent" file: they are stored with their own properties.
"""
import json
import socket
import struct
import sys
import time

OUT, PORT = sys.argv[1], int(sys.argv[2])
TOPIC = "GoldenTopic"


def connect(host):
    return socket.create_connection((host, PORT), 5)


def request(sock, code, ext, body=b""):
    header = json.dumps({"code": code, "flag": 0, "language": "OTHER", "opaque": 1, "version": 493,
                         "extFields": {k: str(v) for k, v in ext.items()}}).encode()
    sock.sendall(struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body)
    data = b""
    while len(data) < 4 or len(data) < 4 + struct.unpack_from(">I", data)[0]:
        data += sock.recv(1 << 20)
    n = struct.unpack_from(">I", data, 4)[0] & 0xffffff
    return json.loads(data[8:8 + n]), data[8 + n:]


def send(sock, topic, props, body, flag=0, sysflag=0, code=310, queue=0, batch=False):
    h, _ = request(sock, code, {"a": "golden", "b": topic, "c": "TBW102", "d": 1, "e": queue, "f": sysflag,
                                "g": 1700000000000, "h": flag, "i": props, "j": 3, "k": "false", "m": str(batch).lower()}, body)
    assert h["code"] == 0, h
    return int(h["extFields"]["queueOffset"])


def stored(sock, topic, offset, queue=0):
    for _ in range(50):
        h, body = request(sock, 11, {"consumerGroup": "golden", "topic": topic, "queueId": queue, "queueOffset": offset,
                                     "maxMsgNums": 1, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0,
                                     "subscription": "*", "subVersion": 0, "expressionType": "TAG"})
        if h["code"] == 0:
            return body
        time.sleep(0.1)
    raise SystemExit("not stored: %r" % h)


def write(name, data):
    text = data.hex()
    with open("%s/%s.hex" % (OUT, name), "w") as f:
        f.write("\n".join(text[i:i + 120] for i in range(0, len(text), 120)) + "\n")


def main():
    v4 = connect("127.0.0.1")
    cases = {
        "plain": "UNIQ_KEY\x017F00000100002A139A16000000000001\x02WAIT\x01true\x02TAGS\x01TagA",
        "keys": "UNIQ_KEY\x01u1\x02TAGS\x01A\x02KEYS\x01k1 k2\x02WAIT\x01true\x02z\x011\x02POP_CK\x01xx\x02",
        "twice": "UNIQ_KEY\x01u2\x02TAGS\x01A\x02TAGS\x01B\x02a\x01b\x01c\x02x\x01y",
        "broken": "UNIQ_KEY\x01u3\x02\x02\x02\x01v\x02k\x02\x01\x02TAGS\x01good\x02kk\x01\x01\x01\x02k\x01",
        "unicode": "UNIQ_KEY\x01u4\x02\u00e9\x01\u00fc\x02\U0001f600\x01\U0001f600\x02\u4e3b\u9898\x01\u6807\u7b7e\x02",
        "many": "UNIQ_KEY\x01u5\x02" + "".join("k%d\x01v%d\x02" % (i, i) for i in range(120)),
        "reserved": "UNIQ_KEY\x01u6\x02MSG_REGION\x01mine\x02CLUSTER\x01mine\x02TRACE_ON\x01false\x02WAIT\x01false\x02",
    }
    for name, props in cases.items():
        offset = send(v4, TOPIC, props, b"body of " + name.encode(), flag=7)
        write(name + ".sent", props.encode())
        write(name + ".stored", stored(v4, TOPIC, offset))
    props = "UNIQ_KEY\x01u7\x02"
    for name, sock, topic in (("compressed", v4, TOPIC), ("ipv6", connect("::1"), TOPIC)):
        offset = send(sock, topic, props, b"compressed, it says", sysflag=1)
        write(name + ".sent", props.encode())
        write(name + ".stored", stored(v4, topic, offset))
    batch = b""
    for body, p in ((b"a", b"TAGS\x01TagA"), (b"bb", b"KEYS\x01k\x02TAGS\x01TagA\x02"), (b"", b"")):
        batch += struct.pack(">iiiii", 22 + len(body) + len(p), 0, 0, 5, len(body)) + body + struct.pack(">h", len(p)) + p
    offset = send(v4, TOPIC, "", batch, code=320, batch=True)
    write("batch.body", batch)
    for i in range(3):
        write("batch-%d.stored" % i, stored(v4, TOPIC, offset + i))


main()
