/**
 * Guests whose agent does not answer, because root has taken its port: the service does not hang. And properties of the
 * agent in a real guest that other programs there depend on.
 */
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import type { TestCapsule } from "../client.ts";
import { waitFor } from "../wait-for.ts";
import { mute } from "./muted.ts";
import { World } from "./world.ts";

let world: World;
before(async () => {
  world = await World.start({
    env: { CAPSULE_WAKE_DEADLINE_MS: "15000" },
    errors: [/could not be frozen/, /did not answer within/],
  });
});
after(() => world[Symbol.asyncDispose]());

/** A second server with a short CAPSULE_SILENCE_MS, whose capsule gets no requests. */
async function impatient(): Promise<World> {
  return World.start({ env: { CAPSULE_SILENCE_MS: "12000", CAPSULE_WAKE_DEADLINE_MS: "15000" } });
}

async function muted(of = world): Promise<TestCapsule> {
  return mute(await of.client.capsule());
}

describe("an unresponsive guest", { concurrency: true, timeout: 900_000 }, () => {
  test("can be paused; a resume fails and it stays paused; DELETE removes it", async (t) => {
    const capsule = await muted();
    const paused = await world.client.call("POST", `${capsule.path}/pause`);
    t.diagnostic(`pause: ${paused.text}`);
    assert.equal(paused.status, 200);
    const { status, json } = await world.client.call("POST", `${capsule.path}/resume`);
    assert.deepEqual([status, json.error.code], [502, "agent_error"]);
    assert.equal((await capsule.view()).status, "paused");
    await capsule.destroy();
  });

  test("without requests is detected too, and becomes error", async () => {
    await using own = await impatient();
    const capsule = await muted(own);
    const { error_reason } = await capsule.until("error");
    assert.match(error_reason, /agent stopped answering/);
    await waitFor("its VM is ended, which is told first", async () => own.vmPid(capsule.id) === undefined);
    await own.assertConsistent();
    await own.assertNoResidue();
  });

  test("cannot be captured, and the attempt leaves nothing", async () => {
    const capsule = await muted();
    const { status, json } = await world.client.call("POST", "/v1/snapshots", { json: { sandbox_id: capsule.id } });
    assert.deepEqual([status, json.error.code], [502, "agent_error"]);
    assert.deepEqual(world.folders("templates"), []);
    const { error_reason } = await capsule.until("error");
    assert.ok(error_reason.length > 5);
    await capsule.destroy();
  });
});

/**
 * A process that cannot be frozen for 0.5 s after its child is: it reads a page that the child's userfaultfd must provide. The
 * child ends by its timer, which it sets anew as long as it runs; that closes the descriptor, and the kernel provides the page.
 */
const unfreezable = `
import ctypes, fcntl, mmap, os, signal, struct, time
uffd = ctypes.CDLL(None, use_errno=True).syscall(323, os.O_CLOEXEC)
assert uffd >= 0, ctypes.get_errno()
page = mmap.mmap(-1, 4096)
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
def ask(request, *numbers): fcntl.ioctl(uffd, request, bytearray(struct.pack('<%dQ' % len(numbers), *numbers)))
ask(0xc018aa3f, 0xaa, 0, 0)
ask(0xc020aa00, address, 4096, 1, 0)
child = os.fork()
if child == 0:
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    open('/root/ready', 'w').close()
    while True:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        time.sleep(0.001)
else:
    os.close(uffd)
    os.readv(os.open('/dev/zero', os.O_RDONLY), [page])
    with open('/root/read', 'w') as file: file.write('%d %d' % (page[0], os.waitpid(child, 0)[1]))
    time.sleep(1000)
`;

test("a guest whose processes freeze only at the second attempt is captured", { timeout: 900_000 }, async () => {
  const capsule = await world.client.capsule();
  const start = () => capsule.exec({ cmd: "python3", args: ["-c", unfreezable], background: true });
  await start();
  const look =
    "cd /root; if [ -e read ]; then echo ended; elif [ -e ready ]; then grep -hc '^19 ' /proc/[0-9]*/syscall; fi";
  await waitFor("it waits for its page", async () => {
    const seen = (await capsule.sh(`{ ${look}; } | sort -u || true`)).split("\n");
    if (!seen.includes("ended")) return seen.includes("1");
    await capsule.sh("pkill python3; rm -f /root/read /root/ready"); // a guest that does not run for 0.5 s ends the child, too
    await start();
    return false;
  });
  await world.client.expect(201, "POST", "/v1/snapshots", { json: { sandbox_id: capsule.id, name: "stubborn" } });
  const made = await world.client.capsule({ template: "stubborn" });
  await waitFor(
    "it continues, after its child's SIGALRM",
    async () => (await made.sh("cat /root/read || true")) === "0 14",
  );
  await made.destroy();
});

/** A server that waits for VMs longer than this test runs. */
async function patient(): Promise<World> {
  return World.start({ env: { CAPSULE_WAKE_DEADLINE_MS: "600000" } });
}

describe("a VM that does not answer while it starts", { timeout: 900_000 }, () => {
  const soonMs = 300_000;
  let own: World;
  before(async () => {
    own = await patient();
  });
  after(() => own[Symbol.asyncDispose]());

  async function destroyedSoon(id: string): Promise<void> {
    const signal = AbortSignal.timeout(soonMs);
    assert.equal((await own.client.call("DELETE", `/v1/capsules/${id}`, { signal })).status, 204);
    await own.assertNoResidue();
  }

  test("new: DELETE does not wait for it", async () => {
    const { json } = await own.client.expect(201, "POST", "/v1/capsules", { json: {} });
    await own.signalVm(json.id, "SIGSTOP");
    await destroyedSoon(json.id);
  });

  test("resumed: DELETE does not wait for it, and the resume reports the deletion", async () => {
    const capsule = await muted(own);
    await capsule.pause();
    await own.vmEnded(capsule.id);
    const resuming = own.client.call("POST", `${capsule.path}/resume`);
    await waitFor("its VM is there again", async () => own.vmPid(capsule.id));
    await destroyedSoon(capsule.id);
    assert.equal((await resuming).status, 404);
  });
});

test("in the end rows, VMs and folders are consistent, and nothing is left", async () => {
  await world.assertConsistent();
  await world.assertNoResidue();
});

test("the C library is mapped for small commands, and the guest can enable all controllers but cpu", async () => {
  const capsule = await world.client.capsule();
  const maps = await capsule.sh("grep -o '[^/]*$' /proc/1/maps | sort -u");
  for (const name of ["libc.so.6", "ld-linux-x86-64.so.2"]) assert.ok(maps.split("\n").includes(name), maps);
  assert.equal(await capsule.sh("cat /sys/fs/cgroup/cgroup.subtree_control"), "cpu");
  await capsule.sh("echo +memory > /sys/fs/cgroup/cgroup.subtree_control");
  assert.match(await capsule.sh("cat /sys/fs/cgroup/capsule/memory.current"), /^\d+$/);
  await capsule.destroy();
});

/** The status byte of the interval timer's first channel. */
const timerState = `
import ctypes, mmap
libc = ctypes.CDLL(None)
assert libc.ioperm(0x40, 4, 1) == 0
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes.fromhex("b0e2 e643 e440 c3"))  # out 0x43, 0b11100010; in al, 0x40; return
print(ctypes.CFUNCTYPE(ctypes.c_ubyte)(ctypes.addressof(ctypes.c_char.from_buffer(code)))() & 0b1110)
`;

test("an idle guest does not wake its host", async () => {
  const capsule = await world.client.capsule();
  assert.equal(await capsule.sh(`python3 -c '${timerState}'`), "0", "it counts down once, and not for ever");
  assert.match(await capsule.sh("grep ' / ext4 ' /proc/mounts"), /\bno_prefetch_block_bitmaps\b/);
  assert.equal(await capsule.sh("cat /proc/sys/kernel/watchdog /proc/sys/vm/compaction_proactiveness"), "0\n0");
  await capsule.destroy();
});
