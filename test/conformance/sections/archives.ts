/** files/archive and files/extract, which the specification does not have. */
import assert from "node:assert/strict";
import { after, before } from "node:test";
import { gunzipSync, gzipSync } from "node:zlib";
import type { TestCapsule } from "../../client.ts";
import { type Member, pax, tar } from "../../tar.ts";
import { section, test } from "../conforms.ts";
import { client, expectErrors } from "../service.ts";

export const archives = section(import.meta, "packing and extracting trees", () => {
  let capsule: TestCapsule;
  before(async () => {
    capsule = await client.capsule();
    await capsule.sh("mkdir -p /tree/a/deep /to; echo secret > /secret; chmod 600 /secret");
  });
  after(() => capsule?.[Symbol.asyncDispose]());

  function archive(json: object, status = 200) {
    return client.expect(status, "POST", `${capsule.path}/files/archive`, { json });
  }

  function extract(body: Buffer, status = 204, path = "/to") {
    const at = `${capsule.path}/files/extract?path=${encodeURIComponent(path)}`;
    return client.expect(status, "POST", at, { body, headers: { "content-type": "application/x-tar" } });
  }

  function sh(script: string): Promise<string> {
    return capsule.sh(script);
  }

  test("a tree comes through as it is, as tar and as tar.gz", async () => {
    await sh(`cd /tree/a && echo one > file && chmod 4751 file && chown 1000:1001 file && touch -d @1000000000 file
      ln file deep/same && ln -s ../file deep/link && mkfifo pipe && mknod null c 1 3 && printf x > "$(printf 'caf\\351')"
      head -c 3000000 /dev/urandom > deep/large && truncate -s 1T sparse && chmod 700 deep && touch -d @1100000000 deep`);
    const list = (at: string) =>
      sh(
        `cd ${at} && find . -mindepth 1 ! -type c -printf '%P %y %m %U %G %s %l %n %Ts\\n' | sort; sha256sum < ${at}/deep/large`,
      );
    const expected = await list("/tree/a");
    for (const format of ["tar", "tar.gz"]) {
      const { bytes, headers } = await archive({ paths: ["/tree/a"], base: "/tree", format });
      assert.equal(headers["content-type"], format === "tar" ? "application/x-tar" : "application/gzip");
      assert.ok(bytes.length < 10_000_000, `${bytes.length} bytes`);
      await sh("rm -rf /to/a");
      await extract(bytes);
      assert.equal(await list("/to/a"), expected);
      assert.equal(await sh("stat -c %b /to/a/sparse"), "0");
      if (format === "tar.gz") assert.equal(gunzipSync(bytes).length % 512, 0);
    }
  });

  test("bad paths are 400, missing ones 404", async () => {
    await archive({ paths: ["/tree", "/nope"] }, 404);
    await archive({ paths: ["/secret"], base: "/tree" }, 400);
    await archive({ paths: ["/proc"] }, 400);
    await archive({ paths: [] }, 400);
    await extract(tar(), 404, "/nope");
    await extract(tar(), 400, "/secret");
    await extract(tar(), 400, "relative");
  });

  test("a hostile archive is 400 and changes nothing outside", async () => {
    const way: Member = { name: "way", kind: "2", link: "/" };
    const hostile: Buffer[] = [
      tar({ name: "../secret", content: "pwned" }),
      tar(pax({ path: "a/../../secret" }), { name: "a", content: "pwned" }),
      tar(way, { name: "way/secret", content: "pwned" }),
      tar(way, { name: "up", kind: "2", link: "way" }, { name: "up/secret", content: "pwned" }),
      tar({ name: "hard", kind: "1", link: "../secret" }),
      tar(way, { name: "hard", kind: "1", link: "way/secret" }),
      tar({ name: "cut", content: "content" }).subarray(0, 700),
      Buffer.from("no archive at all"),
      gzipSync(tar({ name: "x" })).subarray(0, 40),
    ];
    const state = () => sh("ls -l --time-style=+%s /secret; cat /secret; ls / | sort");
    const seen = await state();
    for (const body of hostile) await extract(body, 400);
    assert.equal(await state(), seen);
    await extract(tar({ name: "/absolute", content: "inside" }));
    assert.equal(await sh("cat /to/absolute"), "inside");
  });

  test("a bomb fills its own file system alone: 507", async () => {
    expectErrors(/"message":"\/small does not fit: no space left"/);
    await sh("mkdir /small && mount -t tmpfs -o size=8m none /small");
    const bomb = gzipSync(tar({ name: "zeros", content: Buffer.alloc(64 * 1024 * 1024) }));
    assert.ok(bomb.length < 100_000);
    await extract(bomb, 507, "/small");
    assert.equal(await sh("ls -A /small"), "");
  });
});
