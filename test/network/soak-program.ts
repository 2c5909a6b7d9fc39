/**
 * Arguments: a file; scripts by name, as JSON; the SHA-256 that each prints. Until the file exists, connections at once download over and
 * over, and send to an echo, and the scripts run in turn. Every byte that comes must be the one that was sent; a connection may be reset at
 * any place, but must not end early; a script may fail, but must end. Prints the outcomes' counts, and what was wrong.
 */
export const soakProgram = `
import collections, errno, itertools, json, os, socket, subprocess, sys, threading, time
counts, wrong, lock = collections.Counter(), [], threading.Lock()
def expected(size):
    return b"".join((at * 2654435761 & 0xffffffff).to_bytes(4, "little") for at in range(0, size, 4))
size = 400000
body = expected(size)
def check(got, sent, how):
    if sent[:len(got)] != got: wrong.append(f"{how}: another byte among the first {len(got)}")
    if len(got) > len(sent): wrong.append(f"{how}: more bytes than were sent")
def download():
    with socket.create_connection(("a.example", 80), 30) as connection:
        connection.sendall(b"GET /bytes/%d HTTP/1.1\\r\\nHost: a.example\\r\\n\\r\\n" % size)
        got = bytearray()
        try:
            while chunk := connection.recv(65536): got += chunk
            ended = True
        except OSError: ended = False
    content = bytes(got.partition(b"\\r\\n\\r\\n")[2])
    check(content, body, "download")
    if ended and len(content) != size: wrong.append(f"download: ended at {len(content)} of {size}")
    return "download" if ended else "download reset"
def echo():
    sent = os.urandom(200000)
    got, ended, failed = bytearray(), False, []
    with socket.create_connection(("9.9.9.10", 7), 30) as connection:
        def send():
            try:
                connection.sendall(sent)
                connection.shutdown(socket.SHUT_WR)
            except OSError as error: failed.append(error) # the reading side then sees an end
        thread = threading.Thread(target=send)
        thread.start()
        try:
            while chunk := connection.recv(65536): got += chunk
            ended = True
        except OSError: pass
        thread.join()
    if failed: ended = False
    check(bytes(got), sent, "echo")
    if ended and len(got) != len(sent): wrong.append(f"echo: ended at {len(got)} of {len(sent)}")
    return "echo" if ended else "echo reset"
scripts = itertools.cycle(json.loads(sys.argv[2]).items())
def install():
    name, script = next(scripts)
    try: ran = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired as error:
        wrong.append(f"{name}: has not ended: {error.stdout} {error.stderr}")
        return f"{name} hung"
    if ran.returncode != 0: return f"{name} failed"
    if ran.stdout.strip()[:64] != sys.argv[3]: wrong.append(f"{name}: another content: {ran.stdout}")
    return name
def loop(act):
    while not os.path.exists(sys.argv[1]):
        try: outcome = act()
        except socket.gaierror: outcome = "no name"
        except OSError as error: outcome = errno.errorcode.get(error.errno, str(error))
        with lock: counts[outcome] += 1
        if outcome in ("no name", "EHOSTUNREACH"): time.sleep(.2)
threads = [threading.Thread(target=loop, args=(act,)) for act in [*(download, echo) * 4, install]]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps({"counts": counts, "wrong": wrong}), flush=True)`;
