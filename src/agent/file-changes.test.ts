/** The real agent's STAT, MOVE, CHMOD, CHOWN, WRITE_AS and READ_RANGE. */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import {
  chmod,
  link,
  lstat,
  mkdir,
  readdir,
  readFile,
  readlink,
  stat,
  symlink,
  truncate,
  utimes,
  writeFile,
} from "node:fs/promises";
import { after, before, describe, it } from "node:test";
import { AgentProcess } from "../../test/agent-process.ts";
import { waitFor } from "../../test/wait-for.ts";
import type { Agent, ByteRange, FileAttributes } from "./agent.ts";
import { partOf } from "./byte-range.ts";
import { AgentFailure } from "./failure.ts";

let guest: AgentProcess;
let agent: Agent;
/** Another file system. */
let other: string;

before(async () => {
  guest = await AgentProcess.start();
  agent = await guest.connect();
  await guest.wake(agent);
  other = guest.file("other");
  await mkdir(other);
  execFileSync("mount", ["-t", "tmpfs", "-o", "size=8m", "capsule-test", other]);
});
after(async () => {
  execFileSync("umount", [other]);
  await guest[Symbol.asyncDispose]();
});

function failsWith(failure: AgentFailure["failure"], text = /./): (error: unknown) => boolean {
  return (error) => error instanceof AgentFailure && error.failure === failure && text.test(error.message);
}

const move = (from: string, to: string, overwrite = false) => agent.move({ from, to, overwrite });
const gone = (path: string) => assert.rejects(lstat(path), /ENOENT/);

describe("STAT", () => {
  it("is of a link itself, and of bytes that are no UTF-8", async () => {
    await symlink("nowhere", guest.file("link"));
    const found = await agent.stat(guest.file("link"));
    assert.deepEqual([found.type, found.target, found.path], ["symlink", "nowhere", guest.file("link")]);
    await assert.rejects(agent.stat(guest.file("nowhere")), failsWith("not_found"));
    await writeFile(Buffer.concat([Buffer.from(guest.file("caf")), Buffer.from([0xe9])]), "x");
    const odd = await agent.stat(`${guest.dir}/caf\u{10f8e9}`);
    assert.deepEqual([odd.name, odd.size], ["caf\u{10f8e9}", 1]);
    const moved = await move(odd.path, `${other}/caf\u{10f8ff}`);
    assert.equal((await agent.stat(moved.path)).name, "caf\u{10f8ff}");
    await agent.remove(moved.path);
  });
});

describe("MOVE", () => {
  it("renames, and replaces a file only when asked to", async () => {
    const [a, b] = [guest.file("a"), guest.file("b")];
    await writeFile(a, "a");
    await writeFile(b, "b");
    await assert.rejects(move(a, b), failsWith("conflict", /exists already/));
    assert.equal((await move(a, b, true)).path, b);
    assert.equal(await readFile(b, "utf8"), "a");
    await gone(a);
    assert.equal((await move(b, b, true)).path, b);
    await link(b, a);
    await move(a, b, true);
    await gone(a);
    assert.equal(await readFile(b, "utf8"), "a");
  });

  it("refuses what cannot be moved, and changes nothing", async () => {
    const dir = guest.file("dir");
    await mkdir(`${dir}/sub`, { recursive: true });
    await mkdir(guest.file("empty"));
    await writeFile(guest.file("plain"), "");
    const rows: [string, string, boolean, AgentFailure["failure"]][] = [
      [guest.file("none"), guest.file("x"), false, "not_found"],
      [dir, guest.file("none/x"), false, "invalid"],
      [dir, guest.file("plain/x"), false, "invalid"],
      [dir, `${dir}/sub/x`, false, "invalid"],
      [dir, `${dir}/x`, false, "invalid"],
      ["/", guest.file("x"), false, "invalid"],
      [dir, "/", true, "invalid"],
      [other, guest.file("x"), false, "invalid"],
      [dir, other, true, "invalid"],
      [dir, guest.file("empty"), true, "conflict"],
      [dir, guest.file("plain"), true, "conflict"],
      [guest.file("plain"), guest.file("empty"), true, "conflict"],
      [guest.file("plain"), guest.file("empty"), false, "conflict"],
      [dir, dir, true, "conflict"],
      ["/proc/version", guest.file("x"), false, "invalid"],
      ["/sys/kernel/mm", guest.file("x"), false, "invalid"],
    ];
    for (const [from, to, overwrite, expected] of rows)
      await assert.rejects(move(from, to, overwrite), failsWith(expected), `${from} to ${to}`);
    assert.deepEqual((await readdir(dir)).sort(), ["sub"]);
    await symlink("gone", guest.file("dangling"));
    await assert.rejects(move(guest.file("plain"), guest.file("dangling")), failsWith("conflict"));
    await move(guest.file("plain"), guest.file("dangling"), true);
    assert.ok((await lstat(guest.file("dangling"))).isFile());
  });

  it("into itself through a bind mount is refused", async () => {
    const [outer, bound] = [guest.file("outer"), guest.file("bound")];
    await mkdir(`${outer}/inner`, { recursive: true });
    await writeFile(`${outer}/file`, "kept");
    await mkdir(bound);
    execFileSync("mount", ["--bind", `${outer}/inner`, bound]);
    try {
      await assert.rejects(move(outer, `${bound}/x`), failsWith("invalid", /into itself/));
      assert.deepEqual(await readdir(bound), [], "the copy is removed");
      assert.deepEqual((await readdir(outer)).sort(), ["file", "inner"]);
    } finally {
      execFileSync("umount", [bound]); // which the agent holds no longer
    }
  });

  it("copies a tree to another file system with all that belongs to it", async () => {
    const from = guest.file("tree");
    await mkdir(`${from}/deep/er`, { recursive: true });
    const content = randomBytes(2 * 1024 * 1024 + 11);
    await writeFile(`${from}/deep/file`, content);
    await chmod(`${from}/deep/file`, 0o4751);
    await link(`${from}/deep/file`, `${from}/second`);
    await symlink("deep/file", `${from}/link`);
    execFileSync("mkfifo", ["-m", "620", `${from}/pipe`]);
    execFileSync("chown", ["-h", "1234:4321", `${from}/deep/file`, `${from}/link`, `${from}/deep/er`]);
    await chmod(`${from}/deep/file`, 0o4751);
    await writeFile(`${from}/sparse`, "x");
    await truncate(`${from}/sparse`, 64 * 1024 * 1024);
    await chmod(`${from}/deep/er`, 0o1701);
    for (const name of ["deep/file", "deep/er", "deep", "."])
      await utimes(`${from}/${name}`, 1_000_000_001, 1_000_000_002);
    const to = `${other}/moved`;
    const entry = await move(from, to);
    assert.deepEqual([entry.path, entry.type], [to, "directory"]);
    await gone(from);
    assert.ok((await readFile(`${to}/deep/file`)).equals(content));
    const file = await stat(`${to}/second`);
    assert.deepEqual([file.mode & 0o7777, file.uid, file.gid, file.nlink], [0o4751, 1234, 4321, 2]);
    assert.equal(await readlink(`${to}/link`), "deep/file");
    assert.equal((await lstat(`${to}/link`)).uid, 1234);
    const pipe = await lstat(`${to}/pipe`);
    assert.deepEqual([pipe.isFIFO(), pipe.mode & 0o777], [true, 0o620]);
    const sparse = await stat(`${to}/sparse`);
    assert.ok(sparse.size === 64 * 1024 * 1024 && sparse.blocks < 100, "the hole is kept");
    assert.equal((await stat(`${to}/deep/er`)).mode & 0o7777, 0o1701);
    for (const name of ["deep/file", "deep/er", "deep", "."])
      assert.equal((await stat(`${to}/${name}`)).mtimeMs, 1_000_000_002_000, name);
    execFileSync("rm", ["-r", to]);
  });

  it("that does not fit leaves its source whole and nothing at its target", async () => {
    const from = guest.file("large");
    await mkdir(from);
    for (const name of ["a", "b", "c"]) await writeFile(`${from}/${name}`, randomBytes(4 * 1024 * 1024));
    await assert.rejects(move(from, `${other}/large`), failsWith("no_space"));
    assert.deepEqual(await readdir(other), [], "the half copy is removed");
    assert.deepEqual((await readdir(from)).sort(), ["a", "b", "c"]);
    const stopped = new AbortController();
    const moving = agent.move({ from: `${from}/a`, to: `${other}/a`, overwrite: false }, stopped.signal);
    stopped.abort(new Error("no longer wanted"));
    await assert.rejects(moving, /no longer wanted/);
    await waitFor("the half copy is removed", async () => (await readdir(other)).length === 0);
    assert.equal((await stat(`${from}/a`)).size, 4 * 1024 * 1024);
    await writeFile(`${other}/a`, "old");
    await assert.rejects(move(`${from}/a`, `${other}/a`), failsWith("conflict"));
    await move(`${from}/a`, `${other}/a`, true);
    assert.equal((await stat(`${other}/a`)).size, 4 * 1024 * 1024);
    assert.deepEqual(await readdir(other), ["a"]);
    await agent.remove(`${other}/a`);
  });
});

describe("CHMOD and CHOWN", () => {
  it("follow a link at the end of the path, and no other", async () => {
    const dir = guest.file("modes");
    await mkdir(`${dir}/sub`, { recursive: true });
    await writeFile(guest.file("outside"), "");
    await chmod(guest.file("outside"), 0o600);
    await writeFile(`${dir}/sub/file`, "");
    await symlink("../../outside", `${dir}/sub/link`);
    await symlink("modes", guest.file("to-modes"));
    await agent.chmod(guest.file("to-modes"), 0o751, true);
    for (const name of ["", "/sub", "/sub/file"]) assert.equal((await stat(dir + name)).mode & 0o7777, 0o751, name);
    assert.equal((await stat(guest.file("outside"))).mode & 0o7777, 0o600);
    await agent.chmod(`${dir}/sub/link`, 0o640, false);
    assert.equal((await stat(guest.file("outside"))).mode & 0o7777, 0o640);
    await agent.chown(dir, { owner: "1234" }, true);
    const [inside, linked, outside] = [
      await stat(`${dir}/sub/file`),
      await lstat(`${dir}/sub/link`),
      await stat(guest.file("outside")),
    ];
    assert.deepEqual([inside.uid, inside.gid, linked.uid, outside.uid], [1234, 0, 1234, 0]);
    await agent.chown(`${dir}/sub`, { owner: "root", group: "daemon" }, false);
    assert.deepEqual([(await stat(`${dir}/sub`)).uid, (await stat(`${dir}/sub/file`)).uid], [0, 1234]);
    assert.ok((await stat(`${dir}/sub`)).gid > 0);
  });

  it("of a missing file or an unknown name are refused", async () => {
    await assert.rejects(agent.chmod(guest.file("no"), 0o600, false), failsWith("not_found"));
    await assert.rejects(agent.chown(guest.file("no"), { owner: "0" }, true), failsWith("not_found"));
    await assert.rejects(
      agent.chown(guest.dir, { owner: "no-such-user" }, false),
      failsWith("invalid", /user no-such-user/),
    );
    await assert.rejects(agent.chown(guest.dir, { group: "no-such-group" }, false), failsWith("invalid", /group/));
    await assert.rejects(agent.chown(guest.dir, { owner: "2147483648" }, false), failsWith("invalid"));
  });

  it("reach every entry of a wide and deep tree", async () => {
    const dir = guest.file("wide");
    await mkdir(`${dir}/${"d/".repeat(100)}`, { recursive: true });
    await Promise.all(Array.from({ length: 3_000 }, (_, i) => writeFile(`${dir}/d/a-name-of-some-length-${i}`, "")));
    await agent.chmod(dir, 0o712, true);
    const left = execFileSync("find", [dir, "!", "-perm", "712"], { encoding: "utf8" });
    assert.equal(left, "");
  });
});

describe("WRITE with attributes", () => {
  async function upload(path: string, before?: FileAttributes, behind?: FileAttributes): Promise<void> {
    const file = agent.write(path, before);
    await file.write(Buffer.from("content"));
    if (behind !== undefined) file.attributes(behind);
    await file.end();
  }
  const shown = async (path: string) => {
    const { mode, uid, gid } = await stat(path);
    return [(mode & 0o7777).toString(8), uid, gid];
  };

  for (const place of ["before", "behind"] as const) {
    it(`that stand ${place} the content`, async () => {
      const dir = guest.file(place);
      const put = (path: string, attributes: FileAttributes) =>
        place === "before" ? upload(path, attributes) : upload(path, undefined, attributes);
      await put(`${dir}/x/file`, { parents: true, mode: 0o4710, owner: "1234" });
      assert.deepEqual(await shown(`${dir}/x/file`), ["4710", 1234, 0]);
      for (const each of [dir, `${dir}/x`]) assert.deepEqual(await shown(each), ["755", 1234, 0]);
      await upload(`${dir}/x/file`);
      assert.deepEqual(await shown(`${dir}/x/file`), ["4710", 1234, 0]);
      await put(`${dir}/x/file`, { mode: 0o600 });
      assert.deepEqual(await shown(`${dir}/x/file`), ["600", 1234, 0]);
      await put(`${dir}/x/file`, { owner: "daemon" });
      const [mode, uid, gid] = await shown(`${dir}/x/file`);
      assert.ok(mode === "600" && uid !== 0 && gid !== 0, `${mode} ${uid} ${gid}`);
      await assert.rejects(
        put(`${dir}/y/file`, { mode: 0o600 }),
        failsWith("invalid", /parent directory does not exist/),
      );
      await assert.rejects(put(`${dir}/x/other`, { owner: "no-such-user" }), failsWith("invalid", /no-such-user/));
      await assert.rejects(put(`${dir}/x/file/other`, { parents: true }), failsWith("invalid"));
      assert.deepEqual(await readdir(`${dir}/x`), ["file"]);
    });
  }

  it("to another file system, with the path last", async () => {
    const file = agent.write(undefined, { mode: 0o611 });
    await file.write(Buffer.from("content"));
    file.attributes({ parents: true, mode: 0o611, owner: "54321" });
    file.target(`${other}/new/file`);
    await file.end();
    assert.deepEqual(await shown(`${other}/new/file`), ["611", 54321, 0]);
    assert.deepEqual(await shown(`${other}/new`), ["755", 54321, 0]);
    await agent.remove(`${other}/new`);
  });
});

describe("READ_RANGE", () => {
  it("is the bytes that the reference has", async () => {
    const content = randomBytes(700_001);
    await writeFile(guest.file("ranged"), content);
    const ranges: ByteRange[] = [
      ...[0, 1, 262_143, 262_144, 700_000, 700_001, 800_000, Number.MAX_SAFE_INTEGER - 1].flatMap((first) => [
        { first },
        { first, last: first },
        { first, last: first + 300_000 },
      ]),
      ...[0, 1, 300_000, 700_000, 700_001, 700_002].map((suffix) => ({ suffix })),
    ];
    for (const range of ranges) {
      const { size, body } = await agent.read(guest.file("ranged"), undefined, range);
      const { first, count } = partOf(range, size);
      const bytes = Buffer.concat(await body.toArray());
      assert.equal(size, content.length);
      assert.ok(bytes.equals(content.subarray(first, first + count)), JSON.stringify(range));
    }
    const { size, body } = await agent.read("/proc/self/status", undefined, { first: 5, last: 6 });
    assert.equal(size, 0);
    assert.match(String(Buffer.concat(await body.toArray())), /^Name:/);
  });
});
