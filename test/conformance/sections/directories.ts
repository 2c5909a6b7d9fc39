/** Section "Files": list, mkdir, remove. */
import assert from "node:assert/strict";
import { after, before, describe } from "node:test";
import type { Reply, TestCapsule } from "../../client.ts";
import { conforms, section, test } from "../conforms.ts";
import { refused } from "../refusals.ts";
import { client } from "../service.ts";

export const directories = section(import.meta, "directories", () => {
  let capsule: TestCapsule;
  before(async () => {
    capsule = await client.capsule();
    await capsule.sh(`mkdir -p /tree/a/b/c /tree/d; cd /tree
    echo -n hello > a/file; chmod 640 a/file; chown daemon:mail a/file; touch -d @1000000000 a/file
    echo x > a/b/deep; ln -s a/file link; ln -s nowhere dangling; ln -s . loop; ln -s /etc d/etc
    mkfifo fifo; mknod null c 1 3; mknod disk b 7 99; chmod 1777 d; cp /bin/true suid; chmod 6755 suid
    python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("socket")'`);
  });
  after(() => capsule?.[Symbol.asyncDispose]());

  interface Entry {
    name: string;
    path: string;
    type: string;
    size: number;
    permissions: string;
    owner: string;
    group: string;
    modified_at: number;
    symlink_target: string | null;
  }

  function call(verb: "list" | "mkdir" | "remove", path: unknown, more: Record<string, unknown> = {}): Promise<Reply> {
    return client.call("POST", `${capsule.path}/files/${verb}`, { json: { path, ...more } });
  }

  async function list(path: string, depth?: number): Promise<Entry[]> {
    const { status, json, text } = await call("list", path, depth === undefined ? {} : { depth });
    assert.equal(status, 200, text);
    return json.entries;
  }

  const pathsOf = (entries: Entry[]) => entries.map(({ path }) => path);
  const notPaths = ["", "tree", "./tree", "../tree", "/a\0b", `/${"x/".repeat(2_100)}`, 1, null, undefined];

  describe("list", () => {
    conforms(
      "POST /v1/capsules/{id}/files/list 200",
      "`{entries: FileEntry[]}`: `depth` default 1, its immediate children",
      async () => {
        const entries = await list("/tree");
        const names = ["a", "d", "dangling", "disk", "fifo", "link", "loop", "null", "socket", "suid"];
        assert.deepEqual(
          entries.map(({ name }) => name),
          names,
        );
        assert.deepEqual(
          pathsOf(entries),
          names.map((name) => `/tree/${name}`),
        );
        assert.deepEqual(await list("/tree", 1), entries);
      },
    );

    test("every field of a FileEntry", async () => {
      const [b, file] = await list("/tree/a");
      assert.deepEqual(file, {
        name: "file",
        path: "/tree/a/file",
        type: "file",
        size: 5,
        permissions: "-rw-r-----",
        owner: "daemon",
        group: "mail",
        modified_at: 1_000_000_000,
        symlink_target: null,
      });
      assert.deepEqual([b!.type, b!.permissions, b!.owner, b!.size], ["directory", "drwxr-xr-x", "root", 4_096]);
      const now = Math.floor(Date.now() / 1_000);
      assert.ok(Math.abs(b!.modified_at - now) < 600, String(b!.modified_at));
    });

    test("links, fifos, sockets and devices, with the right letters", async () => {
      const entries = Object.fromEntries((await list("/tree")).map((each) => [each.name, each]));
      const seen = (name: string) => [entries[name]!.type, entries[name]!.permissions, entries[name]!.symlink_target];
      assert.deepEqual(seen("link"), ["symlink", "lrwxrwxrwx", "a/file"]);
      assert.deepEqual(seen("dangling"), ["symlink", "lrwxrwxrwx", "nowhere"]);
      assert.deepEqual(seen("loop"), ["symlink", "lrwxrwxrwx", "."]);
      assert.deepEqual(seen("fifo"), ["file", "prw-r--r--", null]);
      assert.deepEqual(seen("socket"), ["file", "srwxr-xr-x", null]);
      assert.deepEqual(seen("null"), ["file", "crw-r--r--", null]);
      assert.deepEqual(seen("disk"), ["file", "brw-r--r--", null]);
      assert.deepEqual(seen("d"), ["directory", "drwxrwxrwt", null]);
      assert.deepEqual(seen("suid"), ["file", "-rwsr-sr-x", null]);
    });

    test("depth 0 returns only the directory itself; of a file, its own entry at any depth", async () => {
      const [tree, ...none] = await list("/tree", 0);
      assert.deepEqual([tree!.name, tree!.path, tree!.type, none], ["tree", "/tree", "directory", []]);
      const [root] = await list("/", 0);
      assert.deepEqual([root!.path, root!.type], ["/", "directory"]);
      for (const depth of [0, 1, 5]) assert.deepEqual(pathsOf(await list("/tree/a/file", depth)), ["/tree/a/file"]);
    });

    test("higher values recurse further, in the order of paths; links below the start are not followed", async () => {
      assert.deepEqual(pathsOf(await list("/tree/a", 2)), [
        "/tree/a/b",
        "/tree/a/b/c",
        "/tree/a/b/deep",
        "/tree/a/file",
      ]);
      const all = pathsOf(await list("/tree", 100));
      assert.ok(all.includes("/tree/a/b/c") && all.includes("/tree/d/etc"));
      assert.ok(!all.some((path) => path.startsWith("/tree/loop/") || path.startsWith("/tree/d/etc/")));
      assert.deepEqual(all, all.toSorted());
    });

    test("names with newlines, quotes, 255 bytes, and invalid UTF-8", async () => {
      await capsule.sh(
        `mkdir -p /names; cd /names; touch $'new\\nline' $'quo"te' $'bad\\xff' "$(printf 'x%.0s' {1..255})" ünï`,
      );
      const names = (await list("/names")).map(({ name }) => name);
      assert.deepEqual(names.toSorted(), ["bad\u{10f8ff}", "new\nline", 'quo"te', "x".repeat(255), "ünï"].toSorted());
    });

    test("a path that is too long to be asked for again is 400, and the directories above it can be listed", async () => {
      const name = "d".repeat(250);
      await capsule.sh(`mkdir /deep; cd /deep; for i in $(seq 17); do mkdir ${name} && cd -P ${name} || exit; done`);
      assert.equal((await list("/deep", 16)).length, 16);
      const refusal = await call("list", "/deep", { depth: 17 });
      refused(refusal, 400, "invalid_request");
      assert.match(refusal.json.error.message, /^\/deep\/d+… is a path of more than 4095 bytes/);
      assert.equal((await call("remove", "/deep")).status, 204);
    });

    test("a directory of 50 000 entries, an empty one, /proc, /sys and /dev", async () => {
      const make =
        "mkdir -p /many /empty; mount -t tmpfs -o nr_inodes=0 tmpfs /many; cd /many; seq -w 50000 | xargs touch";
      await capsule.sh(make, { timeout: 0 });
      const many = await list("/many");
      assert.equal(many.length, 50_000);
      assert.equal(many[49_999]!.name, "50000");
      assert.deepEqual(await list("/empty"), []);
      for (const path of ["/proc", "/sys", "/dev"]) assert.ok((await list(path)).length > 5, path);
      await list("/proc", 2); // entries that disappear during the listing are skipped
    });

    conforms("POST /v1/capsules/{id}/files/list 404 path", "path does not exist inside the capsule", async () => {
      for (const path of ["/nothing", "/tree/nothing/below"]) refused(await call("list", path), 404, "not_found", path);
    });

    test("null for the depth is the same as leaving it out", async () => {
      const [given, left] = [await call("list", "/tree", { depth: null }), await call("list", "/tree")];
      assert.deepEqual([given.status, given.json], [200, left.json]);
    });

    test("an invalid path or depth is 400", async () => {
      for (const path of notPaths) refused(await call("list", path), 400, "invalid_request", String(path).slice(0, 20));
      for (const depth of [-1, 1.5, "1", {}, 1e9])
        refused(await call("list", "/tree", { depth }), 400, "invalid_request", String(depth));
    });
  });

  describe("mkdir", () => {
    conforms(
      "POST /v1/capsules/{id}/files/mkdir 200",
      "creates intermediate directories; `{entry: FileEntry}` with `type` = `directory`",
      async () => {
        const { status, json, text } = await call("mkdir", "/made/x/y/z");
        assert.equal(status, 200, text);
        const { name, path, type, permissions, owner, group, symlink_target } = json.entry;
        assert.deepEqual(
          { name, path, type, permissions, owner, group, symlink_target },
          {
            name: "z",
            path: "/made/x/y/z",
            type: "directory",
            permissions: "drwxr-xr-x",
            owner: "root",
            group: "root",
            symlink_target: null,
          },
        );
        assert.equal(await capsule.sh("stat -c %F /made/x/y/z"), "directory");
      },
    );

    test("of an existing directory: 200 with its entry, and its content stays", async () => {
      await capsule.sh("mkdir -p /existing; touch /existing/file; chmod 700 /existing");
      const { status, json } = await call("mkdir", "/existing");
      assert.deepEqual([status, json.entry.permissions], [200, "drwx------"]);
      assert.equal((await list("/existing")).length, 1);
      assert.equal((await call("mkdir", "/")).status, 200);
    });

    test("on a file, below a file, or of an invalid path: 400", async () => {
      for (const path of ["/tree/a/file", "/tree/a/file/below", "/tree/fifo/x"])
        refused(await call("mkdir", path), 400, "invalid_request", path);
      for (const path of notPaths)
        refused(await call("mkdir", path), 400, "invalid_request", String(path).slice(0, 20));
    });

    conforms(
      "POST /v1/capsules/{id}/files/mkdir 404 path",
      "path does not exist inside the capsule, and cannot be made to",
      async () => {
        refused(await call("mkdir", "/proc/nothing/below"), 404, "not_found");
      },
    );
  });

  describe("remove", () => {
    conforms(
      "POST /v1/capsules/{id}/files/remove 204",
      "removes a file or a directory tree recursively, without confirmation",
      async () => {
        await capsule.sh(
          "mkdir -p /doomed/a/b; touch /doomed/f /doomed/a/b/f; chmod 000 /doomed/a/b; ln -s /tree /doomed/a/link; seq 3000 | sed 's,^,/doomed/n,' | xargs touch",
        );
        for (const path of ["/doomed/f", "/doomed"]) {
          const { status, bytes } = await call("remove", path);
          assert.deepEqual([status, bytes.length], [204, 0]);
          refused(await call("list", path), 404, "not_found");
        }
        assert.equal((await list("/tree")).length, 10, "what a link pointed to is still there");
      },
    );

    test("a link itself, never its target", async () => {
      await capsule.sh("mkdir -p /kept; touch /kept/file; ln -s /kept /to-kept; ln -s gone /to-gone");
      for (const path of ["/to-kept", "/to-gone"]) assert.equal((await call("remove", path)).status, 204);
      assert.deepEqual(
        (await list("/kept")).map(({ name }) => name),
        ["file"],
      );
    });

    conforms("POST /v1/capsules/{id}/files/remove 404 path", "path does not exist inside the capsule", async () => {
      for (const path of ["/nothing", "/tree/nothing", "/nothing/nothing"])
        refused(await call("remove", path), 404, "not_found", path);
    });

    test("`/`, /proc, /sys, /dev, mount points, and invalid paths: 400, and nothing is removed", async () => {
      await capsule.sh("mkdir -p /mounted; mount -t tmpfs tmpfs /mounted; touch /mounted/file");
      for (const path of ["/", "//", "/.", "/proc", "/sys", "/dev", "/proc/", "/mounted", ...notPaths]) {
        refused(await call("remove", path), 400, "invalid_request", String(path).slice(0, 20));
      }
      assert.equal(
        await capsule.sh("ls /mounted; umount /mounted; [ -e /dev/null ] && [ -e /proc/1 ] && echo alive"),
        "file\nalive",
      );
    });
  });
});
