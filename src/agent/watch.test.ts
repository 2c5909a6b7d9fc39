/** WATCH of the real agent, on directories of this machine. */
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { fchmodSync, readdirSync } from "node:fs";
import * as fs from "node:fs/promises";
import { after, before, beforeEach, describe, it } from "node:test";
import { isDeepStrictEqual, promisify } from "node:util";
import { AgentProcess } from "../../test/agent-process.ts";
import { Random } from "../../test/conformance/random.ts";
import { waitFor } from "../../test/wait-for.ts";
import type { Agent, ChangeStream, TakenChange } from "./agent.ts";
import { AgentFailure } from "./failure.ts";

const run = promisify(execFile);

let guest: AgentProcess;
let agent: Agent;
let dir: string;
let tests = 0;

before(async () => {
  guest = await AgentProcess.start();
  agent = await guest.connect();
  await guest.wake(agent);
});
after(() => guest[Symbol.asyncDispose]());
beforeEach(async () => {
  dir = guest.file(`watched-${tests++}`);
  await fs.mkdir(dir);
});

/** The paths below `dir`. */
async function tree(): Promise<string[]> {
  const { stdout } = await run("find", [dir, "-mindepth", "1", "-printf", "%P\\n"]);
  return stdout.split("\n").filter(Boolean);
}

/** The changes that a watch of `dir` tells, each as `event path to` below it. */
class Watch {
  readonly told: string[] = [];
  /** The paths that a client has which follows the events. */
  tree = new Set<string>();
  readonly #stream: ChangeStream;
  isReading = true;
  failure: Error | undefined;

  static async open(options: { path?: string; recursive?: boolean; directoriesMax?: number } = {}): Promise<Watch> {
    let watch: Watch | undefined;
    let isReady = false;
    const asked = { path: options.path ?? dir, recursive: options.recursive ?? true };
    const stream = agent.watch(
      { ...asked, directoriesMax: options.directoriesMax ?? 1_000 },
      {
        watching: () => {
          isReady = true;
        },
        available: () => watch?.read(),
        failed: (error) => {
          if (watch !== undefined) watch.failure = error;
        },
      },
    );
    watch = new Watch(stream);
    await waitFor("the directory is watched", () => isReady || watch.failure !== undefined);
    if (watch.failure !== undefined) throw watch.failure;
    return watch;
  }

  constructor(stream: ChangeStream) {
    this.#stream = stream;
  }

  read(): void {
    for (let change = this.#next(); change !== undefined; change = this.#next()) {
      this.#keep(change);
      if (change === "end") return;
    }
  }

  /** Makes a file and waits until that is told, and with it everything before. Returns what was told since the last call. */
  async since(): Promise<string[]> {
    const name = `mark-${tests++}`;
    await fs.writeFile(`${dir}/${name}`, "");
    await waitFor(`${name} is told`, () => this.told.includes(`create ${name}`));
    const told = this.told.splice(0);
    return told.slice(0, told.indexOf(`create ${name}`));
  }

  close(): void {
    this.#stream.cancel();
  }

  #next(): TakenChange | undefined {
    return this.isReading ? this.#stream.take() : undefined;
  }

  #keep(change: TakenChange): void {
    if (typeof change === "string") {
      this.told.push(change);
      if (change === "overflow") this.tree = new Set(readdirSync(dir, { recursive: true }) as string[]);
      return;
    }
    const short = (path: string) => (path.startsWith(`${dir}/`) ? path.slice(dir.length + 1) : path);
    const [path, to] = [short(change.path), change.event === "rename" ? short(change.to) : undefined];
    this.told.push([change.event, path, to ?? []].flat().join(" "));
    const below = [...this.tree].filter((each) => each === path || each.startsWith(`${path}/`));
    if (change.event === "create") this.tree.add(path);
    if (change.event !== "remove" && to === undefined) return;
    for (const each of below) this.tree.delete(each);
    if (to !== undefined) for (const each of below) this.tree.add(to + each.slice(path.length));
  }
}

function failsWith(failure: AgentFailure["failure"]): (error: unknown) => boolean {
  return (error) => {
    assert.ok(error instanceof AgentFailure, String(error));
    assert.equal(error.failure, failure, error.message);
    return true;
  };
}

describe("what is told", () => {
  it("every event, in order", async () => {
    const watch = await Watch.open();
    await run("sh", ["-c", "echo x >a; chmod 600 a; mv a b; mkdir d; mv b d/c; rm d/c; rmdir d"], { cwd: dir });
    const expected = ["create a", "write a", "chmod a", "rename a b", "create d"];
    const told = await watch.since();
    assert.deepEqual(told.slice(0, 5), expected);
    // The new directory may have been watched before the file came or after.
    assert.ok(told.includes("rename b d/c") || told.includes("remove b"), told.join());
    assert.ok(!told.includes("overflow"), told.join());
    assert.equal(told.at(-1), "remove d");
    watch.close();
  });

  it("without recursive nothing below its directories", async () => {
    await fs.mkdir(`${dir}/sub`);
    const watch = await Watch.open({ recursive: false });
    await fs.writeFile(`${dir}/sub/file`, "x");
    await fs.chmod(`${dir}/sub`, 0o700);
    await fs.rename(`${dir}/sub`, `${dir}/new`);
    assert.deepEqual(await watch.since(), ["chmod sub", "rename sub new"]);
    watch.close();
  });

  it("an upload as one event of its own name", async () => {
    const watch = await Watch.open();
    for (const content of ["one", "another"]) {
      const upload = agent.write(`${dir}/up`);
      await upload.write(Buffer.from(content));
      await upload.end();
    }
    const parents = agent.write(undefined, { parents: true, mode: 0o600 });
    await parents.write(Buffer.from("spooled"));
    parents.target(`${dir}/in/it`);
    await parents.end();
    const cancelled = agent.write(`${dir}/never`);
    await cancelled.write(Buffer.alloc(100_000));
    cancelled.cancel();
    // The agent sets the mode of a directory that it has made, while the watch reads what is in it.
    const told = (await watch.since()).filter((each) => each !== "chmod in");
    assert.deepEqual(told, ["create up", "write up", "create in", "create in/it"]);
    watch.close();
  });

  it("names of any bytes, which lead back to their files", async () => {
    const watch = await Watch.open();
    await fs.writeFile(Buffer.concat([Buffer.from(`${dir}/`), Buffer.from([0xff, 0x62])]), "");
    assert.deepEqual(await watch.since(), ["create \u{10f8ff}b"]);
    assert.equal((await agent.stat(`${dir}/\u{10f8ff}b`)).path, `${dir}/\u{10f8ff}b`);
    watch.close();
  });

  it("every file of trees that are made as fast as can be", async () => {
    const watch = await Watch.open();
    const script = 'for i in $(seq 50); do mkdir -p "$0$i/b/c" && touch "$0$i/x" "$0$i/b/c/y" "$0$i/b/c/z"; done';
    await Promise.all(["p", "q"].map((name) => run("sh", ["-c", script, name], { cwd: dir })));
    await run("sh", ["-c", "mkdir src && cd src && mkdir a b && seq 250 | sed 's/^/a\\/f/' | xargs touch"], {
      cwd: dir,
    });
    await run("cp", ["-r", "src", "copy"], { cwd: dir });
    const there = await tree();
    await waitFor("all is told", () => there.every((path) => watch.tree.has(path)));
    assert.ok(!watch.told.includes("overflow"));
    assert.equal(new Set(watch.told).size, watch.told.length, "each once");
    watch.close();
  });

  it("so much that a client which follows random changes has the tree", async (t) => {
    const random = new Random(t);
    const watch = await Watch.open({ directoriesMax: 10_000 });
    const pick = () => Array.from({ length: 1 + random.below(3) }, () => "abcd"[random.below(4)]).join("/");
    const commands = [
      () => `mkdir -p ${pick()}`,
      () => `touch ${pick()}`,
      () => `rm -rf ${pick()}`,
      () => `mv -T ${pick()} ${pick()}`,
      () => `mv -T ${pick()} ../out; mv -T ../out ${pick()}`,
      () => `cp -rT ${pick()} ${pick()}`,
    ];
    for (let batch = 0; batch < 25; batch++) {
      const script = Array.from({ length: 20 }, () => commands[random.below(commands.length)]!());
      const other = Array.from({ length: 20 }, () =>
        commands[random.below(commands.length)]!().replaceAll("../out", "../out2"),
      );
      await Promise.all([script, other].map((s) => run("sh", ["-c", `${s.join("\n")}\ntrue`], { cwd: dir })));
    }
    await watch.since();
    await waitFor("the client has the tree", async () => {
      const [is, seen] = [[...(await tree())].sort(), [...watch.tree].sort()];
      return isDeepStrictEqual(is, seen);
    });
    watch.close();
  });
});

describe("the end", () => {
  it("is told when the directory is removed, also while it is open", async () => {
    const watch = await Watch.open();
    const held = await fs.open(dir);
    await fs.writeFile(`${dir}/last`, "");
    await fs.rm(dir, { recursive: true });
    await waitFor("the end is told", () => watch.told.includes("end"));
    assert.deepEqual(watch.told, ["create last", "remove last", `remove ${dir}`, "end"]);
    await held.close();
  });

  it("is told when a directory above is moved", async () => {
    await fs.mkdir(`${dir}/above/it`, { recursive: true });
    const watch = await Watch.open({ path: `${dir}/above/it` });
    await fs.rename(`${dir}/above`, `${dir}/elsewhere`);
    await waitFor("the end is told", () => watch.told.includes("end"));
    assert.deepEqual(watch.told, ["remove above/it", "end"]);
  });

  it("leaves nothing in the guest", async () => {
    const open = async () => {
      const fds = `/proc/${guest.process.pid}/fd`;
      const targets = (await fs.readdir(fds)).map((fd) => fs.readlink(`${fds}/${fd}`).catch(() => ""));
      return (await Promise.all(targets)).filter((target) => target.includes("inotify")).length;
    };
    await waitFor("the watches before have ended", async () => (await open()) === 0);
    const watches = await Promise.all([1, 2, 3].map(() => Watch.open()));
    assert.equal(await open(), 3);
    watches[0]!.close();
    await waitFor("it is closed", async () => (await open()) === 2);
    agent.close();
    agent = await guest.connect();
    await waitFor("those of the connection are closed", async () => (await open()) === 0);
  });
});

describe("what cannot be watched", () => {
  it("fails with the reason", async () => {
    await fs.writeFile(`${dir}/file`, "");
    await fs.symlink(dir, `${dir}/link`);
    await assert.rejects(Watch.open({ path: `${dir}/missing` }), failsWith("not_found"));
    await assert.rejects(Watch.open({ path: `${dir}/file` }), failsWith("not_directory"));
    await assert.rejects(Watch.open({ path: `${dir}/link` }), failsWith("invalid"));
    await fs.mkdir(`${dir}/a/b`, { recursive: true });
    await assert.rejects(Watch.open({ directoriesMax: 2 }), failsWith("too_large"));
    (await Watch.open({ directoriesMax: 3 })).close();
    (await Watch.open({ directoriesMax: 1, recursive: false })).close();
  });

  it("is an overflow when it is made later, and the watch goes on", async () => {
    const watch = await Watch.open({ directoriesMax: 2 });
    await fs.mkdir(`${dir}/a`);
    assert.deepEqual(await watch.since(), ["create a"]);
    await fs.mkdir(`${dir}/b`);
    assert.deepEqual(await watch.since(), ["create b", "overflow"]);
    await fs.writeFile(`${dir}/a/file`, "");
    assert.deepEqual(await watch.since(), ["create a/file"]);
    watch.close();
  });
});

it("a client that does not read loses events, is told so once, and goes on", async () => {
  const watch = await Watch.open();
  watch.isReading = false;
  const most = Number(await fs.readFile("/proc/sys/fs/inotify/max_queued_events", "utf8"));
  // More than the stream, the agent and the kernel hold. Equal events in a row would be one.
  const files = await Promise.all(["0", "1"].map((name) => fs.open(`${dir}/${name}`, "w")));
  const count = most + 40_000;
  for (let n = 0; n < count; n++) fchmodSync(files[n % 2]!.fd, 0o600);
  for (const file of files) await file.close();
  await fs.mkdir(`${dir}/late`);
  watch.isReading = true;
  watch.read();
  await waitFor("it is told", () => watch.told.includes("overflow"));
  await fs.writeFile(`${dir}/late/file`, "");
  await waitFor("it goes on", () => watch.told.includes("create late/file"));
  assert.equal(watch.told.filter((each) => each === "overflow").length, 1);
  assert.ok(watch.told.length < count, "not all was told");
  watch.close();
});
