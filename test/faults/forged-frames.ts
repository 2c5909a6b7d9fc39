/**
 * A program for root in the guest that freezes the agent, takes over its port through pidfd_getfd, and sends invalid
 * frames on the connection that the host trusts.
 */
import type { Call, TestCapsule } from "../client.ts";

/** The answer to the first request; names of the functions below. */
export type Forgery =
  | "answer_to_unopened_stream"
  | "flood_of_other_epochs"
  | "second_start"
  | "exit_of_unopened_stream"
  | "output_beyond_the_window"
  | "single_bytes_of_output"
  | "endless_listing"
  | "listings_at_the_limits"
  | "huge_frame"
  | "frame_without_end"
  | "huge_file"
  | "negative_sizes"
  | "second_end"
  | "repeated_halt"
  | "nonsense";

const program = `
import ctypes, os, select, struct, sys, time

libc = ctypes.CDLL(None, use_errno=True)
SYS_pidfd_open, SYS_pidfd_getfd = 434, 438
OPEN, DATA, END, WINDOW, EVENT, RESULT, CANCEL, NOTICE = 3, 4, 5, 6, 7, 8, 10, 11

def take_port():
    os.mkdir('/sys/fs/cgroup/stopped')
    open('/sys/fs/cgroup/stopped/cgroup.procs', 'w').write('1')
    open('/sys/fs/cgroup/stopped/cgroup.freeze', 'w').write('1')
    while 'frozen 1' not in open('/sys/fs/cgroup/stopped/cgroup.events').read(): pass
    agent = libc.syscall(SYS_pidfd_open, 1, 0)
    numbers = [n for n in os.listdir('/proc/1/fd') if 'vport' in os.readlink('/proc/1/fd/' + n)]
    port = libc.syscall(SYS_pidfd_getfd, agent, int(numbers[0]), 0)
    os.set_blocking(port, True)
    return port

port = take_port()

def read(count):
    got = b''
    while len(got) < count:
        got += os.read(port, count - len(got))
    return got

def hear():
    first = b'\\0'
    while first == b'\\0': first = read(1)
    kind, flags, epoch, stream, length = struct.unpack('<BBHII', first + read(11))
    return kind, epoch, stream, read(length)

def say(data):
    while data: data = data[os.write(port, data):]

def frame(kind, epoch, stream, payload, flags=0, length=None):
    return struct.pack('<BBHII', kind, flags, epoch, stream, len(payload) if length is None else length) + payload

def text(value): return struct.pack('<I', len(value)) + value
def record(payload): return payload + b'\\x7e'
started = record(struct.pack('<HI', 1, 7) + text(b'proc-00000000'))
exited = record(struct.pack('<iBQ', 0, 0, 5))
entry = text(b'name') + text(b'/name') + struct.pack('<BQI', 0, 5, 0o100644) + text(b'root') + text(b'root') + struct.pack('<QB', 5, 0)

# An EXEC's last field is its mode: 2 requests no start event.
def begin(epoch, stream): return b'' if request[-2] == 2 else frame(EVENT, epoch, stream, started)

def answer_to_unopened_stream(epoch, stream): say(frame(RESULT, epoch, stream + 1000, exited))
def flood_of_other_epochs(epoch, stream):
    while True: say(frame(RESULT, epoch ^ 1, stream, exited) * 1000)
def second_start(epoch, stream): say(2 * frame(EVENT, epoch, stream, started))
def exit_of_unopened_stream(epoch, stream):
    say(begin(epoch, stream) + frame(RESULT, epoch, stream + 1, exited))
def output_beyond_the_window(epoch, stream):
    say(begin(epoch, stream))
    while True: say(frame(DATA, epoch, stream, b'x' * 65536, 1))
def single_bytes_of_output(epoch, stream):
    say(begin(epoch, stream))
    room = 262144
    while True:
        while room >= 1000:
            say(frame(DATA, epoch, stream, b'x', 1) * 1000)
            room -= 1000
        kind, _, of, payload = hear()
        if kind == WINDOW and of == stream: room += struct.unpack('<I', payload[:4])[0]
def endless_listing(epoch, stream):
    room = 262144
    while True:
        while room >= 60000:
            data = entry * (60000 // len(entry))
            say(frame(DATA, epoch, stream, data))
            room -= len(data)
        kind, _, of, payload = hear()
        if of == stream and kind == WINDOW: room += struct.unpack('<I', payload[:4])[0]
        elif of == stream: return
def listings_at_the_limits(epoch, stream):
    name = b'\\x01' * 200
    item = text(name) + text(b'/' + name) + entry[len(text(b'name') + text(b'/name')):]
    listing = item * (((16 << 20) - 65536) // len(item))
    rooms, asked = {}, [(OPEN, *each) for each in waiting.values()]
    while True:
        kind, epoch, of, payload = asked.pop() if asked else hear()
        verb = struct.unpack('<H', payload[:2])[0] if kind == OPEN else 0
        if verb == 1: say(frame(RESULT, epoch, of, record(b'')))
        elif verb == 34: rooms[of] = [262144, 0]
        elif kind == WINDOW and of in rooms: rooms[of][0] += struct.unpack('<I', payload[:4])[0]
        elif of in rooms: del rooms[of]
        for stream, (room, sent) in list(rooms.items()):
            while room >= 65536 and sent < len(listing):
                part = listing[sent:sent + 65536]
                say(frame(DATA, epoch, stream, part))
                room, sent = room - len(part), sent + len(part)
            rooms[stream] = [room, sent]
            if sent < len(listing): continue
            say(frame(RESULT, epoch, stream, record(struct.pack('<i', len(listing) // len(item)))))
            del rooms[stream]
def huge_frame(epoch, stream): say(frame(DATA, epoch, stream, b'', 0, 0xffffffff) + b'x' * 100000)
def frame_without_end(epoch, stream):
    say(frame(DATA, epoch, stream, b'', 1, 65536))
    while True:
        say(b'x')
        time.sleep(0.5)
def huge_file(epoch, stream):
    say(frame(EVENT, epoch, stream, record(struct.pack('<HQ', 32, 1 << 50))) + frame(DATA, epoch, stream, b'x'))
    say(frame(END, epoch, stream, record(struct.pack('<Q', 1))) + frame(RESULT, epoch, stream, record(b'')))
def negative_sizes(epoch, stream):
    data = entry.replace(struct.pack('<BQI', 0, 5, 0o100644), struct.pack('<BQI', 0, (1 << 64) - 1, 0o100644))
    say(frame(DATA, epoch, stream, data) + frame(RESULT, epoch, stream, record(struct.pack('<i', -1))))
def second_end(epoch, stream):
    say(begin(epoch, stream) + frame(END, epoch, stream, record(struct.pack('<Q', 0))) * 2)
def repeated_halt(epoch, stream):
    while True: say(frame(NOTICE, epoch, 0, record(struct.pack('<HB', 1, 0))))
def nonsense(epoch, stream):
    while True: say(os.urandom(4096))

# Probes get the truth. What the daemon asks by itself, USAGE, gets nothing, as do requests that it takes back while
# the agent is being frozen.
PROBE, USAGE = struct.pack('<H', 1), struct.pack('<H', 47)
waiting = {}
while not waiting or select.select([port], [], [], 0.3)[0]:
    kind, epoch, stream, request = hear()
    if kind == CANCEL: waiting.pop(stream, None)
    elif kind == OPEN and request[:2] == PROBE: say(frame(RESULT, epoch, stream, record(b'')))
    elif kind == OPEN and request[:2] != USAGE: waiting[stream] = epoch, stream, request
epoch, stream, request = next(reversed(waiting.values()))
globals()[sys.argv[1]](epoch, stream)
while True: hear()
`;

/** Writes the program to the guest. */
export const forgeryForm: NonNullable<Call["form"]> = [
  ["path", "/root/forge.py"],
  ["file", Buffer.from(program)],
];

/** The command that starts it. */
export function forgeryCommand(forgery: Forgery): object {
  return { cmd: "python3", args: ["/root/forge.py", forgery], background: true };
}

/** Shortly afterwards the agent is frozen, and the program answers the next request. */
export async function startForging({ client, path }: TestCapsule, forgery: Forgery): Promise<void> {
  await client.expect(204, "POST", `${path}/files/write`, { form: forgeryForm });
  await client.expect(202, "POST", `${path}/exec`, { json: forgeryCommand(forgery) });
}
