#!/usr/bin/env python3
"""Captures the records of one transaction on a 5.4.0 reference broker (transactionCheckInterval 3000).

    capture.py OUT_DIR BROKER_PORT

half.sent.hex is the properties text as sent; half, again (written again for the check), commit and mark (.stored.hex) are
records as stored; check.hex is the whole frame that asks the producer.
"""
import json
import socket
import struct
import sys
import time

OUT, PORT = sys.argv[1], int(sys.argv[2])
TOPIC, GROUP, UNIQUE = "TxGolden", "golden-pg", "7F00000100002A139A16000000000001"


def frame(sock):
    data = b""
    while len(data) < 4 or len(data) < 4 + struct.unpack_from(">I", data)[0]:
        more = sock.recv(4 if len(data) < 4 else 4 + struct.unpack_from(">I", data)[0] - len(data))
        if not more:
            raise SystemExit("closed")
        data += more
    n = struct.unpack_from(">I", data, 4)[0] & 0xffffff
    return data, json.loads(data[8:8 + n]), data[8 + n:]


def request(sock, code, ext, body=b""):
    header = json.dumps({"code": code, "flag": 0, "language": "OTHER", "opaque": 1, "version": 493,
                         "extFields": {k: str(v) for k, v in ext.items()}}).encode()
    sock.sendall(struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body)
    while True:
        _, header, body = frame(sock)
        if header["flag"] & 1:
            return header, body


def pulled(sock, topic, queue, wait_s=10):
    end = time.time() + wait_s
    while time.time() < end:
        h, body = request(sock, 11, {"consumerGroup": "golden", "topic": topic, "queueId": queue, "queueOffset": 0,
                                     "maxMsgNums": 1, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0,
                                     "subscription": "*", "subVersion": 0, "expressionType": "TAG"})
        if h["code"] == 0:
            return body
        time.sleep(0.2)
    raise SystemExit("nothing in %s: %r" % (topic, h))


def write(name, data):
    text = data.hex()
    with open("%s/%s.hex" % (OUT, name), "w") as f:
        f.write("\n".join(text[i:i + 120] for i in range(0, len(text), 120)) + "\n")


def main():
    sock = socket.create_connection(("127.0.0.1", PORT), 30)
    request(sock, 17, {"topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6,
                       "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"})
    request(sock, 34, {}, json.dumps({"clientID": "golden", "consumerDataSet": [],
                                      "producerDataSet": [{"groupName": GROUP}]}).encode())
    pairs = [("TRAN_MSG", "true"), ("PGROUP", GROUP), ("UNIQ_KEY", UNIQUE), ("TAGS", "tg"), ("KEYS", "k1 k2"),
             ("user", "v"), ("WAIT", "true")]
    sent = "".join("%s\x01%s\x02" % pair for pair in pairs)
    h, _ = request(sock, 310, {"a": GROUP, "b": TOPIC, "c": "TBW102", "d": 4, "e": 2, "f": 4,
                               "g": int(time.time() * 1000), "h": 0, "i": sent, "j": 0, "k": "false", "m": "false"},
                   b"golden half")
    assert h["code"] == 0, h
    first = int(h["extFields"]["msgId"][-16:], 16)
    write("half.sent", sent.encode())
    write("half.stored", request(sock, 33, {"offset": first})[1])
    while True:
        whole, h, _ = frame(sock)
        if h["code"] == 39:
            break
    write("check", whole)
    ext = h["extFields"]
    write("again.stored", request(sock, 33, {"offset": ext["commitLogOffset"]})[1])
    h, _ = request(sock, 37, {"producerGroup": GROUP, "topic": TOPIC, "commitOrRollback": 8, "fromTransactionCheck": "true",
                              "tranStateTableOffset": ext["tranStateTableOffset"],
                              "commitLogOffset": ext["commitLogOffset"], "msgId": UNIQUE, "transactionId": UNIQUE})
    assert h["code"] == 0, h
    write("commit.stored", pulled(sock, TOPIC, 2))
    write("mark.stored", pulled(sock, "RMQ_SYS_TRANS_OP_HALF_TOPIC", 0))


main()
