/**
 * Arguments: a file. Until it exists, connections at once download over and over, and send to an echo. Every byte that comes must be the one
 * that was sent; a connection may be reset at any place, but must not end early. Prints the outcomes' counts, and what was wrong.
 */
export const soakProgram = `
import collections, errno, json, os, socket, sys, threading, time
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
def loop(act):
    while not os.path.exists(sys.argv[1]):
        try: outcome = act()
        except socket.gaierror: outcome = "no name"
        except OSError as error: outcome = errno.errorcode.get(error.errno, str(error))
        with lock: counts[outcome] += 1
        if outcome in ("no name", "EHOSTUNREACH"): time.sleep(.2)
threads = [threading.Thread(target=loop, args=(act,)) for act in (download, echo) * 4]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps({"counts": counts, "wrong": wrong}), flush=True)`;
