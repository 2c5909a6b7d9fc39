/** The watch of a directory in a real guest. */
import assert from "node:assert/strict";
import { after, before } from "node:test";
import type { TestCapsule } from "../../client.ts";
import { waitFor } from "../../wait-for.ts";
import { section, test } from "../conforms.ts";
import { refused } from "../refusals.ts";
import { client } from "../service.ts";
import { type Message, TestSocket } from "../socket.ts";

/** Without a timeout of its own; the test has a deadline. */
const unhurried = { timeout: 0 };

export const watch = section(import.meta, "watching a directory", () => {
  let capsule: TestCapsule;
  let marks = 0;
  before(async () => {
    capsule = await client.capsule();
    await capsule.sh("mkdir /data");
  });
  after(() => capsule?.[Symbol.asyncDispose]());

  const suffix = (path: string, recursive?: boolean) =>
    `files/watch?path=${encodeURIComponent(path)}${recursive === undefined ? "" : `&recursive=${recursive}`}`;

  async function watched(path: string, recursive?: boolean): Promise<TestSocket> {
    const socket = await TestSocket.open(capsule, suffix(path, recursive));
    await socket.next("ready");
    return socket;
  }

  /** `event path to`, or `overflow`. */
  function short({ type, event, path, to }: Message): string {
    return type === "event" ? [event, path, to ?? []].flat().join(" ") : type;
  }

  /** The changes that a script in /data causes. */
  async function told(socket: TestSocket, script: string): Promise<string[]> {
    const mark = `mark-${marks++}`;
    await capsule.sh(`cd /data && ${script}\n: >/data/${mark}`, unhurried);
    const lines: string[] = [];
    while (lines.at(-1) !== `create /data/${mark}`) lines.push(short(await socket.any()));
    return lines.slice(0, -1);
  }

  test("each event is told with absolute paths, in order", async () => {
    await using socket = await watched("/data");
    const script =
      "echo x >a; chmod 600 a; mv a b; touch -d @5 b; mv b /tmp/b; mv /tmp/b c; mkdir sub; >sub/unseen; rm c";
    const lines = await told(socket, script);
    const expected = [
      "create a",
      "write a",
      "chmod a",
      "rename a b",
      "chmod b",
      "remove b",
      "create c",
      "create sub",
      "remove c",
    ];
    assert.deepEqual(
      lines,
      expected.map((line) => line.replace(/ (?=\S)/g, " /data/")),
    );
  });

  test("an atomic write is one event of its own name", async () => {
    await using socket = await watched("/data");
    const write = async (content: string) => {
      const form: [string, string][] = [
        ["path", "/data/written"],
        ["file", content],
      ];
      await client.expect(204, "POST", `${capsule.path}/files/write`, { form });
    };
    await write("new");
    await write("again");
    assert.deepEqual(await told(socket, "true"), ["create /data/written", "write /data/written"]);
  });

  test("recursive tells every file that is there in the end", async () => {
    await using socket = await watched("/data", true);
    const storm = [
      'for i in $(seq 60); do mkdir -p "t$i/b/c"; touch "t$i/x" "t$i/b/c/y"; done',
      "mkdir many; cd many; seq 500 | xargs touch; cd ..",
      "cp -r many copy; tar -c copy t1 | (mkdir untarred; tar -xC untarred)",
      "mkdir old; touch old/file; mv old new; mkdir new/later; touch new/later/file; rm -r t2",
    ];
    const lines = await told(socket, storm.join("; "));
    assert.ok(!lines.includes("overflow"), "nothing was lost");
    const there = (await capsule.sh("find /data -mindepth 1 ! -name 'mark-*' -newer /data/written")).trim().split("\n");
    assert.ok(there.length > 1_500, `${there.length} files`);
    const tree = new Set<string>();
    for (const line of lines) {
      const [event, path = "", to = ""] = line.split(" ");
      const below = [...tree].filter((each) => each === path || each.startsWith(`${path}/`));
      if (event === "create") tree.add(path);
      if (event === "remove" || event === "rename") for (const each of below) tree.delete(each);
      if (event === "rename") for (const each of below) tree.add(to + each.slice(path.length));
    }
    assert.deepEqual(
      there.filter((path) => !tree.has(path)),
      [],
    );
  });

  test("a moved directory's files have right paths, links are not followed, and names of any bytes lead back", async () => {
    await using socket = await watched("/data", true);
    await told(socket, "mkdir -p m/n; : >m/n/f; mkdir /outside; ln -s /outside link");
    const lines = await told(socket, "mv m moved; echo x >>moved/n/f; touch /outside/unseen link/too; : >$'caf\\xe9'");
    const name = "/data/caf\u{10f8e9}";
    assert.deepEqual(lines, ["rename /data/m /data/moved", "write /data/moved/n/f", `create ${name}`]);
    const { json } = await client.expect(200, "POST", `${capsule.path}/files/stat`, { json: { path: name } });
    assert.equal(json.entry.path, name);
  });

  test("lost events are one overflow, and the watch goes on", async () => {
    await using socket = await watched("/data", true);
    // Long paths fill what the agent, service and sockets hold; the kernel's queue holds 16 384 events.
    const long = Array(10).fill("x".repeat(240)).join("/");
    await told(socket, `mkdir deep; mkdir -p ${long}; : >${long}/one; : >${long}/two`);
    socket.socket.pause();
    const script = `import os\nos.chdir('/data/${long}')\nfor n in range(30000): os.chmod(('one', 'two')[n % 2], 0o600)`;
    await capsule.sh(`python3 -c "${script}"; mkdir /data/deep/later`, unhurried);
    socket.socket.resume();
    let overflows = 0;
    for (let message = await socket.any(); ; message = await socket.any()) {
      if (message.type !== "overflow") continue;
      overflows += 1;
      break;
    }
    const lines = await told(socket, "touch deep/later/file");
    overflows += lines.filter((line) => line === "overflow").length;
    assert.deepEqual([overflows, lines.includes("create /data/deep/later/file")], [1, true]);
  });

  test("the directory's end is its remove and 1000", async () => {
    await capsule.sh("mkdir -p /data/ends/here /data/goes");
    await using removed = await watched("/data/ends/here", true);
    await using moved = await watched("/data/goes");
    await capsule.sh("rm -r /data/ends; mv /data/goes /data/gone");
    assert.deepEqual((await removed.rest()).map(short), ["remove /data/ends/here"]);
    assert.deepEqual((await moved.rest()).map(short), ["remove /data/goes"]);
    assert.deepEqual([(await removed.closed).code, (await moved.closed).code], [1000, 1000]);
  });

  test("refusals are HTTP answers", async () => {
    const ask = (query: string) => client.upgrade(`${capsule.path}/files/watch${query}`);
    await capsule.sh("touch /data/file; ln -sfn /data /data/loop; mkdir -p /data/a/b");
    refused(await ask("?path=/data/missing"), 404, "not_found");
    for (const path of ["/data/file", "/data/loop", "data"]) {
      refused(await ask(`?path=${path}&recursive=true`), 400, "invalid_request", path);
    }
    for (const query of ["", "?path=/data&recursive=yes", "?path=/data&depth=1"]) {
      refused(await ask(query), 400, "invalid_request", query);
    }
  });

  test("limits: 429 beyond the watches of a capsule, 400 beyond the directories of one", async () => {
    const { watches_max: most, watch_directories_max: directories } = (await client.expect(200, "GET", "/v1/limits"))
      .json;
    await capsule.sh("mkdir /data/limit");
    const sockets = await Promise.all(Array.from({ length: most }, () => watched("/data/limit")));
    refused(await client.upgrade(`${capsule.path}/${suffix("/data")}`), 429, "quota_exceeded");
    await Promise.all(sockets.map((socket) => socket[Symbol.asyncDispose]()));
    await capsule.sh(`mkdir /data/wide && cd /data/wide && seq ${directories} | xargs mkdir`, unhurried);
    await waitFor("a place is free", async () => {
      const { status } = await client.upgrade(`${capsule.path}/${suffix("/data/wide", true)}`);
      return status === 400;
    });
    await capsule.sh("rm -r /data/wide", unhurried);
  });

  test("a pause closes with 4409, and nothing is left in the guest", async () => {
    await using socket = await watched("/data", true);
    await client.expect(200, "POST", `${capsule.path}/pause`);
    assert.equal((await socket.closed).code, 4409);
    await client.expect(200, "POST", `${capsule.path}/resume`);
    const count = "find /proc/1/fd -lname '*inotify*' | wc -l";
    await waitFor("the watch has ended", async () => (await capsule.sh(count)).trim() === "0");
    await using again = await watched("/data", true);
    assert.equal((await capsule.sh(count)).trim(), "1");
    assert.deepEqual(await told(again, ": >resumed"), ["create /data/resumed"]);
  });
});
