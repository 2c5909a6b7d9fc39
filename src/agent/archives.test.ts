/** ARCHIVE and EXTRACT of the real agent, on trees of every kind of file, and archives of every kind of hostility. */
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { randomBytes } from "node:crypto";
import * as fs from "node:fs/promises";
import { after, before, beforeEach, describe, it } from "node:test";
import { promisify } from "node:util";
import { AgentProcess } from "../../test/agent-process.ts";
import { checked, endMark, header, member, pax, tar } from "../../test/tar.ts";
import { waitFor } from "../../test/wait-for.ts";
import type { Agent, ArchiveRequest } from "./agent.ts";
import { AgentFailure } from "./failure.ts";

const run = promisify(execFile);
const isRoot = process.getuid?.() === 0;
const asRoot = { skip: isRoot ? false : "only root can make devices and give files away" };

let guest: AgentProcess;
let agent: Agent;
/** Its files are compared after each hostile archive. */
let outside: string;
let dir: string;
let tests = 0;

before(async () => {
  guest = await AgentProcess.start();
  agent = await guest.connect();
  await guest.wake(agent);
});
after(() => guest[Symbol.asyncDispose]());
beforeEach(async () => {
  outside = guest.file(`test-${tests++}`);
  dir = `${outside}/dir`;
  await fs.mkdir(dir, { recursive: true });
  await fs.writeFile(`${outside}/secret`, "untouched", { mode: 0o600 });
});

async function archive(request: ArchiveRequest): Promise<Buffer> {
  return Buffer.concat(await (await agent.archive(request)).toArray());
}

/** In pieces of this size. */
async function extract(bytes: Buffer, to = dir, pieceBytes = 100_000): Promise<void> {
  const upload = agent.extract(to);
  try {
    for (let at = 0; at < bytes.length; at += pieceBytes) await upload.write(bytes.subarray(at, at + pieceBytes));
    await upload.end();
  } catch (error) {
    upload.cancel();
    throw error;
  }
}

function failsWith(...failures: AgentFailure["failure"][]): (error: unknown) => boolean {
  return (error) => {
    assert.ok(error instanceof AgentFailure, String(error));
    assert.ok(failures.includes(error.failure), `${error.failure}: ${error.message}`);
    return true;
  };
}

/** The most memory that the agent has had, in KiB. */
async function peakMemoryKb(): Promise<number> {
  const status = await fs.readFile(`/proc/${guest.process.pid}/status`, "utf8");
  return Number(/^VmHWM:\s+(\d+) kB$/m.exec(status)?.[1]);
}

/** One line for each file below the folder, with all that an archive keeps. */
async function listing(of: string, fields = "%P %y %m %U %G %s %l %T@ %n"): Promise<string[]> {
  const { stdout } = await run("find", [of, "-mindepth", "1", "-printf", `${fields}\\0`], { encoding: "buffer" });
  return stdout.toString("latin1").split("\0").filter(Boolean).sort();
}

async function makeTree(root: string): Promise<void> {
  await fs.mkdir(`${root}/a/b/empty`, { recursive: true });
  await fs.writeFile(`${root}/a/file`, "content");
  await fs.writeFile(`${root}/a/nothing`, "");
  await fs.writeFile(`${root}/a/b/block`, Buffer.alloc(512, "x"));
  await fs.writeFile(`${root}/a/b/large`, randomBytes(1_000_003));
  await fs.chmod(`${root}/a/file`, 0o4751);
  await fs.chmod(`${root}/a/b/empty`, 0o1777);
  await fs.link(`${root}/a/file`, `${root}/a/b/same`);
  await fs.symlink("../file", `${root}/a/b/link`);
  await fs.symlink("x".repeat(300), `${root}/a/b/long-link`);
  await fs.writeFile(Buffer.from(`${root}/a/caf\xe9`, "latin1"), "latin");
  const long = `${root}/a/${"d".repeat(120)}`;
  await fs.mkdir(long);
  await fs.writeFile(`${long}/${"ü".repeat(60)}`, "long");
  await fs.writeFile(Buffer.from(`${long}/\xff${"y".repeat(200)}`, "latin1"), "long and no UTF-8");
  await run("mkfifo", [`${root}/a/pipe`]);
  await fs.utimes(`${root}/a/file`, 1_000_000_000, 1_000_000_000);
  await fs.utimes(`${root}/a/b`, 1_100_000_000, 1_100_000_000);
}

describe("an archive", () => {
  it("of a tree is extracted as that tree", async () => {
    await makeTree(outside);
    await extract(await archive({ paths: [`${outside}/a`], base: outside }));
    assert.deepEqual(
      await listing(`${dir}/a`, "%P %y %m %U %G %s %l %n"),
      await listing(`${outside}/a`, "%P %y %m %U %G %s %l %n"),
    );
    const seconds = async (path: string) => (await fs.lstat(path)).mtime.getTime();
    assert.deepEqual([await seconds(`${dir}/a/file`), await seconds(`${dir}/a/b`)], [1e12, 1.1e12]);
    assert.deepEqual(await fs.readFile(`${dir}/a/b/large`), await fs.readFile(`${outside}/a/b/large`));
    assert.equal((await fs.stat(`${dir}/a/file`)).ino, (await fs.stat(`${dir}/a/b/same`)).ino);
  });

  it("is read by GNU tar, and GNU tar's are extracted", async () => {
    await makeTree(outside);
    const fields = "%P %y %m %U %G %s %l %n";
    const expected = await listing(`${outside}/a`, fields);
    await fs.writeFile(`${outside}/tar`, await archive({ paths: [`${outside}/a`], base: outside }));
    await run("tar", ["-xpf", `${outside}/tar`, "-C", dir]);
    assert.deepEqual(await listing(`${dir}/a`, fields), expected);
    for (const format of ["gnu", "pax", "v7", "ustar"]) {
      // v7 and ustar have no room for the long names, and leave those files out.
      const made = run("tar", [`--format=${format}`, "-cf", `${outside}/tar`, "-C", outside, "a"]);
      await (format === "gnu" || format === "pax" ? made : made.catch(() => {}));
      const to = `${outside}/${format}`;
      await fs.mkdir(to);
      await extract(await fs.readFile(`${outside}/tar`), to, 511);
      const found = await listing(`${to}/a`, fields);
      if (format === "gnu" || format === "pax") assert.deepEqual(found, expected, format);
      else
        assert.ok(
          found.some((line) => line.startsWith("b/large f")),
          format,
        );
    }
  });

  it("keeps fractions of seconds where it has a pax header", async () => {
    await run("touch", ["-d", "2001-02-03 04:05:06.123456789 UTC", `${dir}/${"n".repeat(150)}`]);
    await run("touch", ["-d", "1961-02-03 04:05:06.25 UTC", `${dir}/old`]);
    const expected = await listing(dir, "%P %T@");
    const bytes = await archive({ paths: [`${dir}/old`, `${dir}/${"n".repeat(150)}`], base: dir });
    const to = `${outside}/to`;
    await fs.mkdir(to);
    await extract(bytes, to);
    assert.deepEqual(await listing(to, "%P %T@"), expected);
  });

  it("names its members relative to the base, and refuses what is outside of it", async () => {
    await fs.mkdir(`${dir}/in`);
    const namesOf = async (request: ArchiveRequest) => {
      await fs.writeFile(`${outside}/tar`, await archive(request));
      return (await run("tar", ["-tPf", `${outside}/tar`])).stdout.split("\n").filter(Boolean);
    };
    assert.deepEqual(await namesOf({ paths: [`${dir}//in/.`] }), [`${dir.slice(1)}/in/`]);
    assert.deepEqual(await namesOf({ paths: [`${dir}/in`], base: dir }), ["in/"]);
    assert.deepEqual(await namesOf({ paths: [`${dir}/in/../in`, dir], base: dir }), ["in/", "./", "in/"]);
    for (const paths of [[`${outside}/secret`], [`${dir}/in`, `${dir}/../secret`], [`${dir}-too`]])
      await assert.rejects(archive({ paths, base: dir }), failsWith("invalid"));
  });

  it("is refused before its first byte when a path is missing", async () => {
    await assert.rejects(archive({ paths: [dir, `${dir}/gone`] }), failsWith("not_found"));
    await assert.rejects(archive({ paths: ["relative"] }), failsWith("invalid"));
    await assert.rejects(archive({ paths: ["/proc/self"] }), failsWith("invalid"));
  });

  it("leaves out devices and sockets", asRoot, async () => {
    await run("mknod", [`${dir}/null`, "c", "1", "3"]);
    await run("python3", [
      "-c",
      "import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])",
      `${dir}/socket`,
    ]).catch(() => {});
    await fs.writeFile(`${dir}/file`, "");
    await fs.writeFile(`${outside}/tar`, await archive({ paths: [dir], base: outside }));
    assert.equal((await run("tar", ["-tf", `${outside}/tar`])).stdout, "dir/\ndir/file\n");
  });

  it("has no holes of a sparse file, which is extracted with them", async () => {
    const file = await fs.open(`${dir}/sparse`, "w");
    await file.write("start", 0);
    await file.write("middle", 50_000_000_000);
    await file.truncate(1e12);
    await file.close();
    const bytes = await archive({ paths: [`${dir}/sparse`], base: dir });
    assert.ok(bytes.length < 1_000_000, `${bytes.length} bytes`);
    const checkAt = async (to: string) => {
      const copy = await fs.open(`${to}/sparse`);
      const { size, blocks } = await copy.stat();
      const text = async (at: number) => (await copy.read(Buffer.alloc(6), 0, 6, at)).buffer.toString();
      assert.deepEqual([size, await text(0), await text(50_000_000_000)], [1e12, "start\0", "middle"]);
      assert.ok(blocks < 10_000);
      await copy.close();
    };
    for (const [name, packed] of [
      ["own", bytes],
      ...(await Promise.all(
        [
          ["gnu", "--format=gnu"],
          ["pax-0.0", "--sparse-version=0.0"],
          ["pax-0.1", "--sparse-version=0.1"],
          ["pax-1.0", "--sparse-version=1.0"],
        ].map(async ([name, option]) => {
          const format = name === "gnu" ? [] : ["--format=pax"];
          await run("tar", [...format, option!, "-cSf", `${outside}/${name}.tar`, "-C", dir, "sparse"]);
          return [name, await fs.readFile(`${outside}/${name}.tar`)] as [string, Buffer];
        }),
      )),
    ] as [string, Buffer][]) {
      const to = `${outside}/${name}`;
      await fs.mkdir(to);
      await extract(packed, to, 1_000);
      await checkAt(to);
    }
    const gnu = `${outside}/by-gnu`;
    await fs.mkdir(gnu);
    await fs.writeFile(`${outside}/tar`, bytes);
    await run("tar", ["-xf", `${outside}/tar`, "-C", gnu]);
    await checkAt(gnu);
  });

  it("keeps the size of a header while its file grows and shrinks", async () => {
    await fs.writeFile(`${dir}/file`, Buffer.alloc(8_000_000, "a"));
    await fs.writeFile(`${dir}/next`, "next");
    const body = await agent.archive({ paths: [`${dir}/file`, `${dir}/next`], base: dir });
    const chunks: Buffer[] = [];
    for await (const chunk of body) {
      if (chunks.length === 0) await fs.truncate(`${dir}/file`, 3_000_000);
      chunks.push(chunk);
    }
    const to = `${outside}/to`;
    await fs.mkdir(to);
    await extract(Buffer.concat(chunks), to);
    const content = await fs.readFile(`${to}/file`);
    assert.deepEqual([content.length, content.at(-1), content[0]], [8_000_000, 0, 97]);
    assert.equal(await fs.readFile(`${to}/next`, "utf8"), "next");
  });

  it("is abandoned with its reader, and the agent goes on", async () => {
    await fs.writeFile(`${dir}/file`, Buffer.alloc(8_000_000));
    const body = await agent.archive({ paths: [dir] });
    body.destroy();
    assert.ok((await archive({ paths: [dir] })).length > 8_000_000);
  });
});

describe("an extraction", () => {
  it("replaces files of the same name, and keeps others", async () => {
    await fs.writeFile(`${dir}/old`, "old", { mode: 0o600 });
    await fs.writeFile(`${dir}/other`, "other");
    await fs.link(`${dir}/old`, `${outside}/linked`);
    await fs.symlink(`${outside}/secret`, `${dir}/way`);
    await fs.mkdir(`${dir}/folder`);
    await extract(
      tar(
        { name: "/old", content: "new", mode: 0o640 },
        { name: "way", content: "a file now" },
        { name: "made/for/it", content: "deep" },
        { name: "./folder/", kind: "5", mode: 0o700, mtime: 1_000_000_000 },
        { name: "folder/inner", content: "inner" },
        { name: "v7-folder/", kind: "\0", magic: "", mode: 0o755 },
      ),
    );
    const read = (path: string) => fs.readFile(path, "utf8");
    assert.deepEqual(
      [await read(`${dir}/old`), await read(`${dir}/other`), await read(`${outside}/linked`), await read(`${dir}/way`)],
      ["new", "other", "old", "a file now"],
    );
    assert.equal((await fs.stat(`${dir}/old`)).mode & 0o7777, 0o640);
    assert.equal((await fs.stat(`${dir}/made/for`)).mode & 0o7777, 0o755);
    assert.equal((await fs.stat(`${dir}/folder`)).mtime.getTime(), 1e12);
    assert.ok((await fs.stat(`${dir}/v7-folder`)).isDirectory());
    assert.equal(await read(`${outside}/secret`), "untouched");
    assert.ok((await listing(dir, "%f")).every((name) => !name.startsWith(".capsule-")));
  });

  it("reads names and numbers wherever they stand", async () => {
    const large = Buffer.alloc(12);
    large[0] = 0x80;
    large.writeUInt32BE(3, 8);
    await extract(
      tar(
        { name: "file", prefix: "in/prefix", content: "p" },
        { name: "gnu", prefix: "no/prefix", magic: "ustar  \0", content: "g" },
        { name: "number", size: large, content: "256" },
        pax({ comment: "of all", uid: "0" }, "g"),
        pax({ path: "pax/ü", size: "2", mtime: "1000000000.5" }),
        { name: "wrong", content: "ok", size: 0 },
        { name: "././@LongLink", kind: "L", content: "long/name\0" },
        { name: "././@LongLink", kind: "K", content: "long/target\0" },
        { name: "short", kind: "2", link: "short" },
        { name: "volume", kind: "V", content: "left out" },
        { name: "same", kind: "1", link: "/pax/ü", size: 77 },
      ),
      dir,
      7,
    );
    const names = (await listing(dir, "%P %y")).map((name) => Buffer.from(name, "latin1").toString());
    assert.deepEqual(names, [
      ...["gnu f", "in d", "in/prefix d", "in/prefix/file f", "long d", "long/name l", "number f", "pax d", "pax/ü f"],
      "same f",
    ]);
    assert.equal(await fs.readlink(`${dir}/long/name`), "long/target");
    assert.equal((await fs.stat(`${dir}/pax/ü`)).mtimeMs, 1_000_000_000_500);
  });

  it("of a missing directory is not found, into a file invalid", async () => {
    await assert.rejects(extract(tar(), `${dir}/gone`), failsWith("not_found"));
    await assert.rejects(extract(tar(), `${outside}/secret`), failsWith("not_directory"));
    await assert.rejects(extract(tar(), `${outside}/secret/x`), failsWith("not_found"));
  });

  it("takes zeros behind the end mark, as a last block of 16 MiB has, and directories of incremental archives", async () => {
    const members = [
      { name: "dumped/", kind: "D", content: "Yf\0\0" },
      { name: "f", content: "after" },
    ];
    await extract(Buffer.concat([tar(...members), Buffer.alloc(16 * 1024 * 1024)]));
    assert.deepEqual(await fs.readdir(`${dir}/dumped`), []);
    assert.equal(await fs.readFile(`${dir}/f`, "utf8"), "after");
  });

  it("leaves devices out", async () => {
    await extract(tar({ name: "char", kind: "3" }, { name: "block", kind: "4" }, { name: "file" }));
    assert.deepEqual(await fs.readdir(dir), ["file"]);
  });

  it("that is cancelled leaves whole files alone", async () => {
    const upload = agent.extract(dir);
    await upload.write(Buffer.concat([member({ name: "whole", content: "w" }), header({ name: "half", size: 1e6 })]));
    await upload.write(Buffer.alloc(1_000));
    const has = (prefix: string) => async () => (await fs.readdir(dir)).some((name) => name.startsWith(prefix));
    await waitFor("the half file is being written", has(".capsule-"));
    upload.cancel();
    await extract(tar({ name: "later" }));
    const isTidy = async () => (await fs.readdir(dir)).sort().join() === "later,whole";
    await waitFor("the half file is removed", isTidy);
  });

  it("of many entries has no limit but the disk's", async () => {
    const count = 5_000;
    const entries = Array.from({ length: count }, (_, i) => header({ name: `d${i % 50}/f${i}` }));
    await extract(Buffer.concat([...entries, endMark]));
    assert.equal((await listing(dir, "%y")).filter((kind) => kind === "f").length, count);
  });
});

describe("a hostile archive", () => {
  it("of a million entries takes no more of the agent's memory than a small one, and its last entry changes nothing", async () => {
    const directories = Array.from({ length: 1_000 }, (_, i) =>
      header({ name: `d${i % 50}/f${i}`, kind: "5", mode: 0o755 }),
    );
    const thousand = Buffer.concat(directories);
    const upload = agent.extract(dir);
    const write = async () => {
      for (let done = 0; done < 1_000; done++) await upload.write(thousand);
      await upload.write(Buffer.concat([tar({ name: "../secret", content: "pwned" }), endMark]));
      await upload.end();
    };
    const before = await peakMemoryKb();
    await assert.rejects(write(), failsWith("invalid")).finally(() => upload.cancel());
    assert.equal((await listing(dir, "%y")).length, 50 + 1_000);
    assert.ok((await peakMemoryKb()) - before < 16_384, "the agent's memory has grown");
  });

  const way = { name: "way", kind: "2", link: ".." };
  const cases: Record<string, Buffer> = {
    "a name with ..": tar({ name: "../secret", content: "pwned" }),
    "a name with .. inside": tar({ name: "a/../../secret", content: "pwned" }),
    "a name that is ..": tar({ name: "..", kind: "5", mode: 0o777 }),
    "a link and a file behind it": tar(way, { name: "way/secret", content: "pwned" }),
    "a link and a directory in its place": tar(way, { name: "way", kind: "5", mode: 0o777 }),
    "a link and a directory behind it": tar(way, { name: "way/new", kind: "5" }),
    "links in a chain": tar(
      { name: "a", kind: "5" },
      { name: "a/up", kind: "2", link: "../.." },
      { name: "b", kind: "2", link: "a/up" },
      { name: "b/secret", content: "pwned" },
    ),
    "an absolute link": tar({ name: "way", kind: "2", link: "/" }, { name: "way/tmp/pwned", content: "pwned" }),
    "a hard link to the outside": tar(
      { name: "hard", kind: "1", link: "../secret" },
      { name: "hard", content: "pwned" },
    ),
    "a hard link through a link": tar(way, { name: "hard", kind: "1", link: "way/secret" }),
    "a hard link to nothing": tar({ name: "hard", kind: "1", link: "gone" }),
    "a hard link to a directory": tar({ name: "d", kind: "5" }, { name: "hard", kind: "1", link: "d" }),
    "a hard link to the target": tar({ name: "hard", kind: "1", link: "." }),
    "a file as the target": tar({ name: ".", content: "x" }),
    "a file in place of a directory": tar({ name: "d/", kind: "5" }, { name: "d", content: "x" }),
    "a directory in place of a file": tar({ name: "f" }, { name: "f/x", content: "x" }),
    "a pax name with ..": tar(pax({ path: "../secret" }), { name: "fine", content: "pwned" }),
    "a pax name with NUL": tar(pax({ path: "a\0b" }), { name: "fine" }),
    "a GNU name with ..": tar({ name: "L", kind: "L", content: "../secret\0" }, { name: "fine", content: "pwned" }),
    "a name of 5 000 bytes": tar(pax({ path: "x/".repeat(2_500) }), { name: "fine" }),
    "a component of 300 bytes": tar(pax({ path: "x".repeat(300) }), { name: "fine" }),
    "a symlink without a target": tar({ name: "link", kind: "2" }),
    "a pax header of 2 MiB": tar({ name: "x", kind: "x", size: 2 * 1024 * 1024 }),
    "a negative size": tar({ name: "f", size: Buffer.alloc(12, 0xff) }),
    "a size beyond 63 bits": tar({ name: "f", size: Buffer.from([0x80, ...Array(11).fill(0xff)]) }),
    "a size that is no number": tar({ name: "f", size: Buffer.from("12x45") }),
    "an owner of 2^32-1": tar(pax({ uid: "4294967295" }), { name: "f" }),
    "a malformed pax record": tar({ name: "x", kind: "x", content: "99 path=a\n" }, { name: "f" }),
    "a wrong checksum": Buffer.concat([member({ name: "f" }).fill("8", 150, 151), endMark]),
    "no tar": Buffer.alloc(2_000, "text "),
    "nothing at all": Buffer.alloc(0),
    "no end mark": member({ name: "f", content: "x" }),
    "a cut header": member({ name: "f" }).subarray(0, 300),
    "a cut file": tar({ name: "f", content: Buffer.alloc(5_000) }).subarray(0, 2_000),
    "bytes behind the end mark": Buffer.concat([tar({ name: "f" }), member({ name: "g" })]),
    "65 MiB of zeros behind the end mark": Buffer.concat([tar({ name: "f" }), Buffer.alloc(65 * 1024 * 1024)]),
    "a sparse map beyond the file": tar(pax({ "GNU.sparse.map": "0,1,10,99", "GNU.sparse.size": "50" }), {
      name: "f",
      content: Buffer.alloc(100),
    }),
    "a sparse map that runs backwards": tar(pax({ "GNU.sparse.map": "10,5,0,5", "GNU.sparse.size": "50" }), {
      name: "f",
      content: Buffer.alloc(10),
    }),
    "a sparse map without an end": tar(pax({ "GNU.sparse.major": "1", "GNU.sparse.realsize": "9" }), {
      name: "f",
      content: Buffer.alloc(512, "7"),
    }),
    "a sparse file of 8 EiB": tar(pax({ "GNU.sparse.map": "0,0", "GNU.sparse.size": "9223372036854775807" }), {
      name: "f",
    }),
    "an endless GNU map": Buffer.concat([
      checked(header({ name: "f", kind: "S", magic: "ustar  \0" }).fill(1, 482, 483)),
      ...Array.from({ length: 4_000 }, () => Buffer.from(`${"00000000001\0".repeat(42)}\x01\0\0\0\0\0\0\0`, "latin1")),
    ]),
  };
  for (const [name, bytes] of Object.entries(cases)) {
    it(`with ${name} is refused, and nothing outside changes`, async () => {
      const rest = async () => (await listing(outside)).filter((line) => !/^dir(\/| )/.test(line));
      const seen = await rest();
      for (const pieceBytes of [bytes.length + 1, 1_001])
        await assert.rejects(extract(bytes, dir, pieceBytes), failsWith("invalid", "too_large"));
      assert.deepEqual(await rest(), seen);
      assert.equal((await fs.stat(`${outside}/secret`)).nlink, 1);
      assert.ok((await listing(dir, "%f")).every((name) => !name.startsWith(".capsule-")));
    });
  }

  it("with a sparse file of a TiB takes no disk", async () => {
    await extract(
      tar(pax({ "GNU.sparse.map": "0,5,1099511627770,6", "GNU.sparse.size": "1099511627776" }), {
        name: "f",
        content: "startfinish",
      }),
    );
    const { size, blocks } = await fs.stat(`${dir}/f`);
    assert.deepEqual([size, blocks < 100], [1_099_511_627_776, true]);
  });

  it("of random damage never leaves the directory", async () => {
    await makeTree(`${outside}/dir`);
    const whole = await archive({ paths: [`${dir}/a`], base: dir });
    const seed = Number(process.env.CAPSULE_TEST_SEED ?? randomBytes(4).readUInt32LE());
    let state = seed;
    const random = (below: number) => {
      state = (Math.imul(state, 1_103_515_245) + 12_345) >>> 0;
      return Math.floor((state / 2 ** 32) * below);
    };
    const rest = async () => (await listing(outside)).filter((line) => !/^dir(\/| )/.test(line));
    const seen = await rest();
    for (let round = 0; round < 60; round++) {
      const bytes = Buffer.from(whole);
      const block = 512 * random(whole.length / 512);
      for (let changes = 1 + random(4); changes > 0; changes--) bytes[block + random(512)] = random(256);
      if (random(2) === 0) checked(bytes.subarray(block, block + 512));
      await extract(bytes, dir, 1 + random(60_000)).catch((error) => {
        assert.ok(error instanceof AgentFailure, `CAPSULE_TEST_SEED=${seed}: ${error}`);
      });
      assert.deepEqual(await rest(), seen, `CAPSULE_TEST_SEED=${seed}`);
    }
    await agent.probe();
  });
});
