/** Section "Execution": what every way to start a command takes: `user`, `envs`, `cwd`, `tag`; and guests with odd accounts. */
import assert from "node:assert/strict";
import { after, before, describe } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import type { TestCapsule } from "../../client.ts";
import { waitFor } from "../../wait-for.ts";
import { section, test } from "../conforms.ts";
import { client } from "../service.ts";
import { TestSocket } from "../socket.ts";

/** A way to start a command: what it said, or the code of its refusal. */
type Way = (inside: TestCapsule, fields: Record<string, unknown>) => Promise<string>;

const script = "echo $(id -u):$(id -g):$(id -G):$HOME:$USER:$PWD:$WORD";
const cmd = "bash";
const args = ["-c", script];

const ways: Record<string, Way> = {
  "foreground exec": async (inside, fields) => {
    const { status, json } = await inside.exec({ cmd, args, ...fields });
    return status === 200 ? json.stdout.trim() : `${status} ${json.error.code}`;
  },
  "background exec": async (inside, fields) => {
    // Any user may write there.
    const file = `/tmp/said-${Math.random()}`;
    const line = `${script} > ${file}.new; mv ${file}.new ${file}`;
    const { status, json } = await inside.exec({ cmd, args: ["-c", line], background: true, ...fields });
    if (status !== 202) return `${status} ${json.error.code}`;
    return await waitFor(
      "it has said who it is",
      async () => (await inside.run("cat", [file])).stdout.trim() || undefined,
    );
  },
  "exec stream": async (inside, fields) => {
    await using socket = await TestSocket.open(inside, "exec/stream");
    socket.say({ type: "start", cmd, args, ...fields });
    const messages = await socket.rest();
    const refusal = messages.find(({ type }) => type === "error");
    return (
      refusal?.code ??
      messages
        .map(({ type, data }) => (type === "stdout" ? data : ""))
        .join("")
        .trim()
    );
  },
  terminal: async (inside, fields) => {
    await using socket = await TestSocket.open(inside, "pty");
    socket.say({ type: "start", cmd, args, ...fields });
    const messages = await socket.rest();
    const refusal = messages.find(({ type }) => type === "error");
    if (refusal !== undefined) return refusal.code;
    const output = messages.filter(({ type }) => type === "output");
    return output
      .map(({ data }) => Buffer.from(data, "base64").toString())
      .join("")
      .trim();
  },
};

const refused = /^(400 )?invalid_request$/;

export const starts = section(import.meta, "starts of commands", () => {
  let capsule: TestCapsule;
  before(async () => {
    capsule = await client.capsule();
    await capsule.sh("useradd -u 1500 -m -G games,cdrom ada && useradd -u 1501 -d /nowhere 777");
  });
  after(() => capsule?.[Symbol.asyncDispose]());

  for (const [name, start] of Object.entries(ways)) {
    describe(name, () => {
      test("`user`: name or decimal uid, with its groups, HOME and default directory", async () => {
        const groups = (await capsule.sh("id -G ada")).split(" ").toSorted();
        for (const user of ["ada", "1500"]) {
          const [uid, gid, all, ...rest] = (await start(capsule, { user })).split(":");
          assert.deepEqual([uid, gid, ...rest], ["1500", "1500", "/home/ada", "ada", "/home/ada", ""]);
          assert.deepEqual(all!.split(" ").toSorted(), groups);
        }
      });

      test("default root, as `root` and `0` are", async () => {
        for (const fields of [{}, { user: null }, { user: "root" }, { user: "0" }])
          assert.equal(await start(capsule, fields), "0:0:0:/root:root:/root:");
      });

      test("a uid without a name: group 0, HOME and directory /", async () => {
        for (const user of ["65000", "2147483647"])
          assert.equal(await start(capsule, { user }), `${user}:0:0:/:${user}:/:`);
      });

      test("a name of digits goes before the uid; without its home directory it starts in /", async () => {
        assert.equal(await start(capsule, { user: "777" }), "1501:1501:1501:/nowhere:777:/:");
      });

      test("`envs` and `cwd`, of a user too; its own HOME may be given", async () => {
        const fields = { user: "ada", envs: { WORD: "ünd", HOME: "/srv" }, cwd: "/usr/lib" };
        assert.match(await start(capsule, fields), /:\/srv:ada:\/usr\/lib:ünd$/);
      });

      const bad: Record<string, unknown>[] = [
        { user: "nobody-of-this-name" },
        { user: "2147483648" },
        { user: "99999999999999999999" },
        { user: "-1" },
        { user: "+1" },
        { user: "1500:1500" },
        { user: "ada\n" },
        { cwd: "/no/such/directory" },
        { cwd: "/etc/passwd" },
        { cwd: "/root", user: "ada" },
      ];
      for (const fields of bad) {
        test(`${JSON.stringify(fields)} is refused`, async () => {
          assert.match(await start(capsule, fields), refused);
        });
      }
    });
  }

  describe("`tag`", () => {
    const sleeping = { cmd: "sleep", args: ["5001"] };
    const kill = (tag: string) => client.expect(204, "DELETE", `${capsule.path}/processes/${tag}`);

    test("of a live process is 409 in the background and on a stream, and free at its end", async () => {
      await using socket = await TestSocket.open(capsule, "exec/stream");
      socket.say({ type: "start", ...sleeping, tag: "on-stream" });
      await socket.next("start");
      const taken = await capsule.exec({ ...sleeping, background: true, tag: "on-stream" });
      assert.deepEqual([taken.status, taken.json.error.code], [409, "conflict"]);
      await capsule.exec({ ...sleeping, background: true, tag: "behind" });
      for (const tag of ["on-stream", "behind"]) assert.equal(await ways["exec stream"]!(capsule, { tag }), "conflict");
      await kill("on-stream");
      await kill("behind");
      for (const tag of ["on-stream", "behind"]) assert.match(await ways["exec stream"]!(capsule, { tag }), /^0:0:/);
    });

    test("is ignored in the foreground", async () => {
      await capsule.exec({ ...sleeping, background: true, tag: "mine" });
      assert.match(await ways["foreground exec"]!(capsule, { tag: "mine" }), /^0:0:/);
      await kill("mine");
    });
  });

  describe("the entry of a process", () => {
    interface Entry {
      pid: number;
      user: string;
      started_at: number;
      kind: string;
    }
    const entries = async (inside: TestCapsule): Promise<Entry[]> =>
      (await client.expect(200, "GET", `${inside.path}/processes`)).json.processes;
    const entry = async (inside: TestCapsule, pid: number): Promise<Entry> => {
      const found = (await entries(inside)).find((each) => each.pid === pid);
      assert.ok(found !== undefined, `process ${pid} is listed`);
      return found;
    };
    const background = async (inside: TestCapsule, fields: object): Promise<number> =>
      (await inside.exec({ cmd: "sleep", args: ["5003"], background: true, ...fields })).json.pid;

    test("has user, start and kind; a child is `other`", async () => {
      // The host sets the guest's clock by a message, which a busy machine delivers late.
      const guestClock = async () => Number(await capsule.sh("date +%s%3N"));
      const began = await guestClock();
      const pid = await background(capsule, { user: "ada" });
      const { user, started_at: at, kind } = await entry(capsule, pid);
      assert.deepEqual([user, kind], ["ada", "exec"]);
      assert.ok(at >= began - 100 && at <= (await guestClock()) + 100, `${at} since ${began}`);
      assert.ok(Math.abs(at - Date.now()) < 60_000, `${at} by the guest's clock`);
      assert.equal((await entry(capsule, await background(capsule, { user: "65000" }))).user, "65000");
      await using socket = await TestSocket.open(capsule, "pty");
      socket.say({ type: "start", cmd: "sh", args: ["-c", "sleep 5004; exit"] });
      const { pid: terminal } = await socket.next("started");
      assert.equal((await entry(capsule, terminal)).kind, "pty");
      const pgrep = async () => Number((await capsule.run("pgrep", ["-xf", "sleep 5004"])).stdout) || undefined;
      const child = await entry(capsule, await waitFor("the child runs", pgrep));
      assert.equal(child.kind, "other");
      assert.ok(Math.abs(child.started_at - at) < 60_000);
      assert.ok((await entries(capsule)).every(({ kind, started_at: at }) => kind.length > 0 && Number.isInteger(at)));
    });

    test("keeps its start over a pause, and when the clock of the guest is set", async () => {
      await using own = await client.capsule();
      const pid = await background(own, {});
      const script = "sleep 5005 & echo $!";
      const other = Number(await own.sh(`setsid sh -c '${script}' </dev/null 2>/dev/null | head -1`));
      const before = await Promise.all([entry(own, pid), entry(own, other)]);
      await own.pause();
      await delay(1_500);
      await own.resume();
      await own.sh("date -s @86400");
      const after = await Promise.all([entry(own, pid), entry(own, other)]);
      for (const [i, { started_at: at }] of after.entries())
        assert.ok(Math.abs(at - before[i]!.started_at) <= 5, `${at} after ${before[i]!.started_at}`);
      const began = Date.now();
      const later = await entry(own, await background(own, {}));
      assert.ok(Math.abs(later.started_at - began) < 60_000, "the service's clock, not the guest's");
    });
  });

  describe("a guest with odd accounts", () => {
    let odd: TestCapsule;
    before(async () => {
      odd = await client.capsule();
    });
    after(() => odd?.[Symbol.asyncDispose]());
    const start = ways["foreground exec"]!;
    const passwd = (text: string) => odd.sh("cat > /etc/passwd", { stdin: text });

    test("damaged lines are skipped; the first of a name and of a uid counts", async () => {
      const lines = [
        "",
        ":::::::",
        "eve",
        "eve:x:12",
        "eve:x:12:12:",
        "eve:x:-5:0::/minus:/bin/sh",
        "eve:x:4294967296:0::/large:/bin/sh",
        "eve:x:4294967295:0::/same:/bin/sh",
        "eve:x:0:4294967295::/same:/bin/sh",
        "eve:x:one:1::/word:/bin/sh",
        "eve:x:3001:3002::/tmp:/bin/sh",
        "eve:x:3003:3003::/second:/bin/sh",
        "twin:x:3001:3001::/third:/bin/sh",
        "toor:x:0:0::/var:/bin/sh",
        "root:x:0:0:root:/root:/bin/bash",
      ];
      await passwd(lines.join("\n"));
      for (const user of ["eve", "3001"]) assert.equal(await start(odd, { user }), "3001:3002:3002:/tmp:eve:/tmp:");
      assert.equal(await start(odd, { user: "toor" }), "0:0:0:/var:toor:/var:");
      assert.equal(await start(odd, { user: "0" }), "0:0:0:/var:toor:/var:");
      assert.equal(await start(odd, { user: "root" }), "0:0:0:/root:root:/root:");
      assert.equal(await start(odd, {}), "0:0:0:/root:root:/root:");
    });

    test("thousands of users: the last one is found; a file beyond 4 MiB has none", async () => {
      const line = 'printf "user-%d:x:%d:%d:a user:/tmp:/bin/sh\\n", n, 100000 + n, n';
      await odd.sh(`awk 'BEGIN { for (n = 0; n < 50000; n++) ${line} }' > /etc/passwd`);
      assert.equal(await start(odd, { user: "user-49999" }), "149999:49999:49999:/tmp:user-49999:/tmp:");
      await odd.sh("head -c 4M /dev/zero >> /etc/passwd");
      assert.match(await start(odd, { user: "user-49999" }), refused);
      assert.equal(await start(odd, { user: "149999" }), "149999:0:0:/:149999:/:");
    });

    test("no /etc/passwd: root by name, and every number", async () => {
      const home = { cmd: "printenv", args: ["HOME"] };
      for (const change of ["rm /etc/passwd", "mkdir /etc/passwd", "rmdir /etc/passwd; mkfifo /etc/passwd"]) {
        await odd.sh(change);
        for (const fields of [{}, { user: "root" }])
          assert.equal(await start(odd, { ...fields, ...home }), "/root", change);
        assert.equal(await start(odd, { user: "1000", ...home }), "/", change);
        assert.match(await start(odd, { user: "daemon" }), refused);
      }
    });
  });
});
