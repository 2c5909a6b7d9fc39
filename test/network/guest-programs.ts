/** Programs in Python that tests run in guests; each prints what it saw. */

const outcomes = `
import errno, json, socket, ssl, struct, sys, threading
def attempt(act):
    try: return act()
    except socket.gaierror: return "no name"
    except ssl.SSLError as error: return error.reason
    except OSError as error: return errno.errorcode.get(error.errno, str(error))
def everything(connection):
    return b"".join(iter(lambda: connection.recv(65536), b""))
`;

/** Arguments: a list of [host, port] as JSON. Prints the outcome of connecting to each, as JSON. */
export const connectToEach = `${outcomes}
def connect(host, port):
    socket.create_connection((host, port), 60).close()
    return "connected"
print(json.dumps([attempt(lambda: connect(*target)) for target in json.loads(sys.argv[1])]))`;

/** Arguments: host, port, request, whether to end the sending. Prints all that the server sends. */
export const ask = `${outcomes}
def talk():
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), 60) as connection:
        connection.sendall(sys.argv[3].encode())
        return everything(connection).decode("latin1")
print(attempt(talk))`;

/** Arguments: host, SNI, path, certificate. Prints the SHA-256 of the body, or how it failed. */
export const askOverTls = `${outcomes}
import hashlib
def talk():
    context = ssl.create_default_context(cadata=sys.argv[4])
    with context.wrap_socket(socket.create_connection((sys.argv[1], 443), 60), server_hostname=sys.argv[2]) as connection:
        connection.sendall(f"GET {sys.argv[3]} HTTP/1.1\\r\\nHost: {sys.argv[2]}\\r\\n\\r\\n".encode())
        return hashlib.sha256(everything(connection).partition(b"\\r\\n\\r\\n")[2]).hexdigest()
print(attempt(talk))`;

/**
 * Arguments: host, port, sizes as JSON. All at once, each sends so many random bytes, ends its sending, and reads the echo to the end.
 * Prints how each went.
 */
export const echoes = `${outcomes}
import os
def echo(size):
    sent = os.urandom(size)
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), 120) as connection:
        def send():
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
        thread = threading.Thread(target=send)
        thread.start()
        got = everything(connection)
        thread.join()
    return "exact" if got == sent else f"{len(got)} bytes of {size}, or others"
sizes = json.loads(sys.argv[3])
results = [None] * len(sizes)
def run(index): results[index] = attempt(lambda: echo(sizes[index]))
threads = [threading.Thread(target=run, args=(index,)) for index in range(len(sizes))]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps(results))`;

/** Arguments: host, port. Resets the connection once the server has echoed a byte. */
export const reset = `${outcomes}
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), 60)
connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
connection.sendall(b"x")
connection.recv(1)
connection.close()`;

/** Arguments: name, addresses as JSON, types as JSON. Asks each for each type, over UDP and TCP; prints the distinct codes. */
export const questions = `${outcomes}
def question(type):
    labels = b"".join(bytes([len(label)]) + label.encode() for label in sys.argv[1].split("."))
    return struct.pack(">HHHHHH", type, 0x100, 1, 0, 0, 0) + labels + b"\\0" + struct.pack(">HH", type, 1)
codes = set()
for address in json.loads(sys.argv[2]):
    for type in json.loads(sys.argv[3]):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            udp.settimeout(60)
            udp.sendto(question(type), (address, 53))
            codes.add(udp.recv(4096)[3] & 15)
        with socket.create_connection((address, 53), 60) as tcp:
            tcp.sendall(struct.pack(">H", len(question(type))) + question(type))
            codes.add(tcp.recv(4096)[5] & 15)
print(json.dumps(sorted(codes)))`;

/**
 * Arguments: of each connection its way, host and port, as JSON. It holds them all, and prints WAY when each stands and WAY RESULT when it
 * ends. Ways: reading, writing, waiting, half-closed, and echoing, which sends a byte for each line of standard input.
 */
export const hold = `${outcomes}
import time
def say(line):
    sys.stdout.write(line + "\\n") # whole, beside those of other threads
    sys.stdout.flush()
def begin(way, host, port):
    connection = socket.create_connection((host, port), 60)
    connection.settimeout(None)
    say(way)
    def act():
        if way == "half-closed": connection.shutdown(socket.SHUT_WR)
        while True:
            if way == "writing": connection.sendall(b"x" * 4096)
            elif connection.recv(4096) == b"": return "end"
            if way in ("reading", "writing"): time.sleep(.05)
    say(f"{way} {attempt(act)}")
threads = [threading.Thread(target=begin, args=target) for target in json.loads(sys.argv[1])]
for thread in threads: thread.start()
for thread in threads: thread.join()
print("all ended", flush=True)
time.sleep(1e6)`;

/**
 * Arguments: host, port, connections, names. Opens and holds so many, while it asks for so many names, and opens the last one when these
 * are answered: names of which each is another decision push older ones out. Prints the outcomes' counts.
 */
export const flood = `${outcomes}
import collections
held = []
def open_one():
    held.append(socket.create_connection((sys.argv[1], int(sys.argv[2])), 60))
    return "connected"
def ask_one(index):
    socket.getaddrinfo(f"n{index}.example", 80)
    return "a name"
counts = collections.Counter()
def names(first):
    for index in range(first, int(sys.argv[4]), 8): counts[attempt(lambda: ask_one(index))] += 1
threads = [threading.Thread(target=names, args=(first,)) for first in range(8)]
for thread in threads: thread.start()
for _ in range(int(sys.argv[3]) - 1): counts[attempt(open_one)] += 1
for thread in threads: thread.join()
counts[attempt(open_one)] += 1
print(json.dumps(counts))`;

/**
 * Arguments: a command. Runs it in a network namespace whose packets this machine forwards, with addresses of the namespace's own, as those
 * of containers behind a bridge are. A pair of TUN devices and copied packets stand for the veth pair that the guest's kernel lacks.
 */
export const inContainer = `
import ctypes, fcntl, os, struct, subprocess, sys, threading
def ip(*args): subprocess.run(["ip", *args], check=True)
def tun(name, address):
    fd = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(fd, 0x400454ca, struct.pack("16sH22x", name.encode(), 0x1001)) # TUNSETIFF: IFF_TUN, IFF_NO_PI
    ip("address", "add", address, "dev", name)
    ip("link", "set", name, "up")
    return fd
open("/proc/sys/net/ipv4/ip_forward", "w").write("1")
outer = tun("container0", "172.17.0.1/24")
if ctypes.CDLL(None).unshare(0x40000000) != 0: sys.exit("no network namespace") # CLONE_NEWNET
inner = tun("eth0", "172.17.0.2/24")
ip("route", "add", "default", "via", "172.17.0.1")
def copy(one, other):
    while True: os.write(other, os.read(one, 65536))
for pair in ((outer, inner), (inner, outer)): threading.Thread(target=copy, args=pair, daemon=True).start()
sys.exit(subprocess.run(sys.argv[1:]).returncode)`;
