#!/usr/bin/env python3
"""Captures golden frames: a proxy between real clients and the 5.4.0 reference.

    capture.py OUT_DIR CLIENT NAMESRV_PORT BROKER_PORT PROXY_NAMESRV_PORT PROXY_BROKER_PORT

Start the reference, start this, then run a client against 127.0.0.1:PROXY_NAMESRV_PORT. Broker addresses in the answers
of the name server are replaced by the proxy's (both ports must have the same number of digits). The first two requests of
each code and their answers are written as OUT_DIR/CLIENT.CODE.N.request.hex and ...response.hex, frames over 6,000 bytes
are left out. Ends on SIGTERM or SIGINT.
"""
import asyncio
import struct
import sys

OUT, CLIENT = sys.argv[1], sys.argv[2]
NS, BROKER, PROXY_NS, PROXY_BROKER = map(int, sys.argv[3:7])
REAL, FAKE = b"127.0.0.1:%d" % BROKER, b"127.0.0.1:%d" % PROXY_BROKER
assert len(REAL) == len(FAKE)
seen = {}


def numbers(frame):
    """Code, opaque and flag of a frame."""
    import json
    word = struct.unpack_from(">I", frame, 4)[0]
    header = frame[8:8 + (word & 0xffffff)]
    if word >> 24 == 1:
        code, _, _, opaque, flag = struct.unpack_from(">hbhii", header, 0)
        return code, opaque, flag
    h = json.loads(header)
    return h["code"], h["opaque"], h["flag"]


def write(name, frame, comment):
    text = frame.hex()
    lines = [text[i:i + 120] for i in range(0, len(text), 120)]
    with open("%s/%s.hex" % (OUT, name), "w") as f:
        f.write("# %s\n%s\n" % (comment, "\n".join(lines)))


async def pump(reader, writer, wanted, upward, rewrite):
    try:
        while True:
            head = await reader.readexactly(4)
            frame = head + await reader.readexactly(struct.unpack(">I", head)[0])
            code, opaque, flag = numbers(frame)
            if upward and not flag & 1:
                n = seen[code] = seen.get(code, 0) + 1
                if n <= 2 and len(frame) <= 6000:
                    name = "%s.%d.%d" % (CLIENT, code, n)
                    wanted[opaque] = name
                    write(name + ".request", frame, "a request of the %s client" % CLIENT)
            elif not upward and flag & 1 and opaque in wanted:
                name = wanted.pop(opaque)
                if len(frame) <= 6000:
                    write(name + ".response", frame, "the answer of the 5.4.0 reference")
            if rewrite:
                frame = frame.replace(REAL, FAKE)
            writer.write(frame)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def server(port, rewrite):
    async def connected(reader, writer):
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", port)
        wanted = {}
        await asyncio.gather(pump(reader, up_writer, wanted, True, False), pump(up_reader, writer, wanted, False, rewrite))
    return connected


async def main():
    await asyncio.start_server(server(NS, True), "127.0.0.1", PROXY_NS)
    await asyncio.start_server(server(BROKER, False), "127.0.0.1", PROXY_BROKER)
    await asyncio.Event().wait()

asyncio.run(main())
