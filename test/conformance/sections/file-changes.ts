/** Moves, modes and owners of files, attributes of uploads, and parts of files, in a real guest. */
import assert from "node:assert/strict";
import { after, before, describe } from "node:test";
import type { Reply, TestCapsule } from "../../client.ts";
import { section, test } from "../conforms.ts";
import { refused } from "../refusals.ts";
import { client, expectErrors } from "../service.ts";

export const fileChanges = section(import.meta, "moving files, modes and owners", () => {
  let capsule: TestCapsule;
  before(async () => {
    capsule = await client.capsule();
    await capsule.sh("mkdir /data && mkdir /other && mount -t tmpfs -o size=8m tmpfs /other");
  });
  after(() => capsule?.[Symbol.asyncDispose]());

  const post = (verb: string, json: unknown): Promise<Reply> =>
    client.call("POST", `${capsule.path}/files/${verb}`, { json });
  const shell = async (script: string): Promise<string> => (await capsule.sh(script)).trim();

  test("stat shows a link itself, and a name of any bytes leads back to its file", async () => {
    await capsule.sh("cd /data && ln -s gone link && printf x > $'caf\\xe9' && printf y > $'\\U0010f8e9'");
    const link = (await post("stat", { path: "/data/link" })).json.entry;
    assert.deepEqual([link.type, link.symlink_target], ["symlink", "gone"]);
    refused(await post("stat", { path: "/data/gone" }), 404, "not_found");
    const { json } = await client.expect(200, "POST", `${capsule.path}/files/list`, { json: { path: "/data" } });
    const contents = new Map<string, string>();
    for (const { type, path } of json.entries) {
      if (type !== "file") continue;
      assert.equal((await post("stat", { path })).json.entry.path, path);
      contents.set(path, Buffer.from((await post("read", { path })).bytes).toString());
    }
    assert.deepEqual(
      [...contents],
      [
        ["/data/caf\u{10f8e9}", "x"],
        ["/data/\u{10f8f4}\u{10f88f}\u{10f8a3}\u{10f8a9}", "y"],
      ].sort(),
    );
    await client.expect(204, "POST", `${capsule.path}/files/write`, {
      form: [
        ["path", "/data/new\u{10f8ff}"],
        ["file", "z"],
      ],
    });
    assert.equal(await shell("cat /data/new$'\\xff'"), "z");
    const moved = await post("move", { from: "/data/new\u{10f8ff}", to: "/data/\u{10f880}" });
    assert.equal(moved.json.entry.name, "\u{10f880}");
    assert.equal(await shell("cat /data/$'\\x80'"), "z");
  });

  test("move renames, copies to another file system, and refuses what the table says", async () => {
    await capsule.sh(
      "mkdir -p /data/tree/sub && echo content > /data/tree/sub/file && chown 1234:4321 /data/tree/sub/file",
    );
    await capsule.sh("chmod 4751 /data/tree/sub/file && touch -d @1000000 /data/tree/sub/file /data/tree/sub");
    const { status, json } = await post("move", { from: "/data/tree", to: "/other/tree" });
    assert.deepEqual([status, json.entry.path, json.entry.type], [200, "/other/tree", "directory"]);
    const shown =
      "stat -c '%a %u %g %Y' /other/tree/sub/file; stat -c %Y /other/tree/sub; ls -A /data/tree 2>&1; ls -A /other";
    assert.match(await shell(`${shown} || true`), /^4751 1234 4321 1000000\n1000000\nls: .*\ntree$/);
    await capsule.sh("touch /data/a /data/b");
    refused(await post("move", { from: "/data/a", to: "/data/b" }), 409, "conflict");
    assert.equal((await post("move", { from: "/data/a", to: "/data/b", overwrite: true })).status, 200);
    for (const [from, to, overwrite, code] of [
      ["/data/none", "/data/x", false, 404],
      ["/data/b", "/data/none/x", false, 400],
      ["/other/tree", "/other/tree/sub/x", false, 400],
      ["/", "/data/x", false, 400],
      ["/other", "/data/x", false, 400],
      ["/data/b", "/", true, 400],
      ["/data/b", "/other/tree", true, 409],
      ["/other/tree", "/data/b", true, 409],
    ] as const) {
      assert.equal((await post("move", { from, to, overwrite })).status, code, `${from} ${to}`);
    }
    expectErrors(/"message":"[^"]* does not fit: no space left"/);
    await capsule.sh("head -c 12M /dev/urandom > /data/large");
    refused(await post("move", { from: "/data/large", to: "/other/large" }), 507, "no_space");
    assert.equal(await shell("stat -c %s /data/large; ls -A /other"), `${12 * 1024 * 1024}\ntree`);
    await capsule.sh("rm -r /other/tree");
  });

  test("chmod and chown follow the path's own link and none below", async () => {
    await capsule.sh("mkdir -p /data/m/sub && touch /data/m/sub/f /data/out && chmod 600 /data/out");
    await capsule.sh("ln -s /data/out /data/m/sub/l && ln -s m /data/to-m");
    assert.equal((await post("chown", { path: "/data/to-m", owner: "daemon", recursive: true })).status, 204);
    assert.equal((await post("chmod", { path: "/data/to-m", mode: "2751", recursive: true })).status, 204);
    const all = "cd /data; stat -c '%n %a %U' m m/sub m/sub/f out; stat -c '%n %U' m/sub/l";
    assert.equal(
      await shell(all),
      "m 2751 daemon\nm/sub 2751 daemon\nm/sub/f 2751 daemon\nout 600 root\nm/sub/l daemon",
    );
    assert.equal((await post("chown", { path: "/data/m/sub/f", group: "100" })).status, 204);
    assert.equal(await shell("stat -c '%u %g' /data/m/sub/f"), `${await shell("id -u daemon")} 100`);
    refused(await post("chown", { path: "/data/m", owner: "no-such-user" }), 400, "invalid_request");
    refused(await post("chmod", { path: "/data/none", mode: "600" }), 404, "not_found");
  });

  for (const verb of ["write", "stream/write"]) {
    test(`${verb}: parents, mode and owner stand before the file or behind it, and last`, async () => {
      const send = (form: [string, string][]) => client.call("POST", `${capsule.path}/files/${verb}`, { form });
      const dir = `/data/${verb.replace("/", "-")}`;
      for (const [place, form] of [
        [
          "before",
          [
            ["parents", "true"],
            ["mode", "4710"],
            ["owner", "daemon"],
            ["path", `${dir}/before/f`],
            ["file", "x"],
          ],
        ],
        [
          "behind",
          [
            ["path", `${dir}/behind/f`],
            ["file", "x"],
            ["parents", "true"],
            ["mode", "4710"],
            ["owner", "daemon"],
          ],
        ],
        [
          "around",
          [
            ["parents", "true"],
            ["path", `${dir}/around/f`],
            ["file", "x"],
            ["owner", "daemon"],
            ["mode", "4710"],
          ],
        ],
        [
          "between",
          [
            ["parents", "true"],
            ["file", "x"],
            ["owner", "daemon"],
            ["path", `${dir}/between/f`],
            ["mode", "4710"],
          ],
        ],
      ] as [string, [string, string][]][]) {
        const reply = await send(form);
        assert.equal(reply.status, 204, `${place}: ${reply.text}`);
        const stat = `cd ${dir}/${place}; stat -c '%a %U %G' f .`;
        assert.equal(await shell(stat), "4710 daemon daemon\n755 daemon daemon", place);
        assert.equal(
          (
            await send([
              ["path", `${dir}/${place}/f`],
              ["file", "y"],
            ])
          ).status,
          204,
        );
        assert.equal(await shell(`${stat}; cat f`), "4710 daemon daemon\n755 daemon daemon\ny", place);
      }
      const missing: [string, string][] = [
        ["path", `${dir}/none/f`],
        ["file", "x"],
      ];
      for (const more of [[], [["parents", "false"]], [["mode", "600"]]] as [string, string][][])
        refused(await send([...missing, ...more]), 400, "invalid_request");
      refused(
        await send([
          ["path", `${dir}/f`],
          ["owner", "no-such-user"],
          ["file", "x"],
        ]),
        400,
        "invalid_request",
      );
      assert.equal(await shell(`ls ${dir}`), "around\nbefore\nbehind\nbetween");
    });
  }

  test("a signed URL reads or writes its file without a key, and ends with its capsule", async () => {
    await using other = await client.capsule();
    const mint = async (json: object): Promise<string> =>
      (await client.expect(200, "POST", `${other.path}/files/url`, { json })).json.url;
    const [read, write] = [await mint({ path: "/root/ü f" }), await mint({ path: "/root/ü f", method: "PUT" })];
    const content = "0123456789".repeat(100_000);
    assert.equal((await fetch(write, { method: "PUT", body: content })).status, 204);
    const whole = await fetch(read);
    assert.deepEqual([whole.status, whole.headers.get("cache-control")], [200, "no-store"]);
    assert.match(whole.headers.get("content-disposition") ?? "", /^attachment; .*UTF-8''%C3%BC%20f$/);
    assert.ok((await whole.text()) === content);
    const part = await fetch(read, { headers: { range: "bytes=999995-" } });
    assert.deepEqual([part.status, await part.text()], [206, "56789"]);
    assert.equal((await fetch(write)).status, 401);
    assert.equal((await fetch(read.replace("f&", "g&"))).status, 401);
    await other.pause();
    assert.equal((await fetch(read)).status, 409);
    assert.ok((await mint({ path: "/x" })) !== "");
    await other.resume();
    assert.equal((await fetch(read)).status, 200);
    await other.destroy();
    assert.equal((await fetch(read)).status, 404);
  });

  describe("Range", () => {
    for (const verb of ["read", "stream/read"]) {
      test(`${verb}: 206, 416 or everything`, async () => {
        await capsule.sh("seq 100000 > /data/numbers; : > /data/empty");
        const whole = (await post("read", { path: "/data/numbers" })).bytes;
        const ask = (path: string, range: string) =>
          client.call("POST", `${capsule.path}/files/${verb}`, { json: { path }, headers: { range } });
        const size = whole.length;
        for (const [range, first, last] of [
          ["bytes=0-0", 0, 0],
          ["bytes=1000-399999", 1_000, 399_999],
          ["bytes=500000-", 500_000, size - 1],
          ["bytes=-10", size - 10, size - 1],
          [`bytes=-${size + 1}`, 0, size - 1],
          [`bytes=${size - 1}-${size + 5}`, size - 1, size - 1],
        ] as const) {
          const reply = await ask("/data/numbers", range);
          assert.deepEqual([reply.status, reply.headers["content-range"]], [206, `bytes ${first}-${last}/${size}`]);
          assert.ok(Buffer.from(reply.bytes).equals(Buffer.from(whole).subarray(first, last + 1)), range);
        }
        for (const range of [`bytes=${size}-`, "bytes=-0"]) {
          const reply = await ask("/data/numbers", range);
          assert.deepEqual([reply.status, reply.headers["content-range"]], [416, `bytes */${size}`]);
        }
        assert.equal((await ask("/data/empty", "bytes=0-")).status, 416);
        for (const range of ["bytes=0-1,3-4", "lines=0-1", "bytes=5-4", "bytes=x"])
          assert.equal((await ask("/data/numbers", range)).bytes.length, size, range);
        assert.match(Buffer.from((await ask("/proc/version", "bytes=0-4")).bytes).toString(), /^Linux version/);
      });
    }
  });
});
