/** Section "Snapshot templates": list, capture, delete, and capsules made from them. */
import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { after, describe } from "node:test";
import type { Client, Reply, TestCapsule } from "../../client.ts";
import { conforms, section, test } from "../conforms.ts";
import { askMemoryProcess, startMemoryProcess } from "../memory-process.ts";
import { cannotMakeKeys, client, clientOf, ofOneHost, shown } from "../service.ts";

export const snapshots = section(import.meta, "snapshot templates", () => {
  /** A small machine for most tests, because it is captured faster. */
  const small = { memory_mb: 128 };
  /** For a command that sixteen capsules run at once. */
  const slow = { timeout: 300 };
  const made: [Client, string][] = [];

  /** A unique name. */
  function freshName(owner = client): string {
    const name = `test.${randomBytes(6).toString("hex")}`;
    made.push([owner, name]);
    return name;
  }

  after(async () => {
    for (const [owner, name] of made) await owner.call("DELETE", `/v1/snapshots/${name}`);
  });

  function capture(capsule: TestCapsule, name?: string, query = ""): Promise<Reply> {
    return capsule.client.call("POST", `/v1/snapshots${query}`, { json: { sandbox_id: capsule.id, name } });
  }

  /** A template whose capsules have this text in /root/content. */
  async function template(content: string, name = freshName(), query = ""): Promise<string> {
    await using capsule = await client.capsule(small);
    await capsule.sh(`echo -n ${content} > /root/content`);
    const reply = await capture(capsule, name, query);
    assert.equal(reply.status, 201, reply.text);
    return name;
  }

  function contentOf(capsule: TestCapsule): Promise<string> {
    return capsule.sh("cat /root/content", slow);
  }

  async function list(query = "", from = client): Promise<Reply["json"]> {
    return (await from.expect(200, "GET", `/v1/snapshots${query}`)).json;
  }

  describe("list", () => {
    conforms(
      "GET /v1/snapshots 200",
      "lists templates available to the team; `type` is `base` or `snapshot`",
      async () => {
        const name = await template("listed");
        const all: Reply["json"] = await list();
        const [bases, snapshots] = [await list("?type=base"), await list("?type=snapshot")];
        // Sections beside this one make and delete templates of the team between two lists.
        const own = (from: { name: string; type: string }[]) =>
          from.filter((each) => each.type === "base" || each.name === name);
        assert.deepEqual(own(all), own([...bases, ...snapshots]));
        assert.ok(all.every((each: { type: string }) => ["base", "snapshot"].includes(each.type)));
        assert.ok(bases.every((each: { type: string }) => each.type === "base"));
        assert.ok(snapshots.every((each: { type: string }) => each.type === "snapshot"));
        const minimal = bases.find((each: { name: string }) => each.name === "minimal");
        assert.deepEqual([minimal.vcpus, minimal.memory_mb], [null, null]);
        assert.ok(minimal.size_bytes > 10e6);
        assert.ok(!Number.isNaN(Date.parse(minimal.created_at)));
        const mine = snapshots.find((each: { name: string }) => each.name === name);
        assert.deepEqual([mine.vcpus, mine.memory_mb], [1, 128]);
      },
    );
  });

  describe("capture", () => {
    conforms("POST /v1/snapshots 201", "Template with `type` = `snapshot`; the capsule is destroyed", async () => {
      await using capsule = await client.capsule();
      await capsule.sh("echo -n kept > /root/content; echo -n ram > /dev/shm/content");
      await startMemoryProcess(capsule);
      const held = await askMemoryProcess(capsule, "change");
      const name = freshName();
      const reply = await capture(capsule, name);
      assert.equal(reply.status, 201, reply.text);
      const { size_bytes, created_at, ...rest } = reply.json;
      assert.deepEqual(rest, { name, type: "snapshot", vcpus: 1, memory_mb: 512 });
      assert.ok(Number.isInteger(size_bytes) && size_bytes > 0);
      assert.match(created_at, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/);
      assert.deepEqual(
        (await list("?type=snapshot")).find((each: { name: string }) => each.name === name),
        reply.json,
      );
      await client.expect(404, "GET", capsule.path);
      await client.expect(404, "DELETE", capsule.path);

      await using clone = await client.capsule({ template: name });
      assert.equal((await clone.view()).template, name);
      assert.notEqual(clone.id, capsule.id);
      assert.equal(await contentOf(clone), "kept");
      assert.equal(await clone.sh("cat /dev/shm/content"), "ram");
      assert.equal(await askMemoryProcess(clone, "tell"), held, "processes run on in the copy");
    });

    test("`size_bytes` is what its files take, not what they once took", async () => {
      const sizeAfter = async (command: string) => {
        await using capsule = await client.capsule(small);
        await capsule.sh(command, { timeout: 0 });
        const reply = await capture(capsule, freshName());
        assert.equal(reply.status, 201, reply.text);
        return reply.json.size_bytes as number;
      };
      const direct = "dd if=/dev/urandom of=/root/big bs=1M count=64 oflag=direct status=none"; // not into memory
      const [plain, trimmed] = [await sizeAfter("true"), await sizeAfter(`${direct}; rm /root/big; sync; fstrim /`)];
      const moreMib = (trimmed - plain) / 2 ** 20;
      assert.ok(moreMib < 32, `${moreMib} MiB more, after 64 MiB were written and removed`);
    });

    test("a capsule made from it has the template's vcpus and memory_mb, whatever the request contains", async () => {
      const name = freshName();
      await using capsule = await client.capsule({ vcpus: 2, memory_mb: 256 });
      const reply = await capture(capsule, name);
      assert.deepEqual([reply.json.vcpus, reply.json.memory_mb], [2, 256], reply.text);
      await using clone = await client.capsule({ template: name, vcpus: 1, memory_mb: 1_024, timeout_sec: 77 });
      const { vcpus, memory_mb, timeout_sec } = await clone.view();
      assert.deepEqual({ vcpus, memory_mb, timeout_sec }, { vcpus: 2, memory_mb: 256, timeout_sec: 77 });
      assert.equal(await clone.sh("nproc"), "2");
    });

    test("`name` auto-generated when omitted", async () => {
      await using capsule = await client.capsule(small);
      const { json, status, text } = await capture(capsule);
      assert.equal(status, 201, text);
      assert.match(json.name, /^template-[0-9a-f]{8}$/);
      await client.expect(204, "DELETE", `/v1/snapshots/${json.name}`);
    });

    test("names of 1 and of 64 characters, with dots, dashes and underscores", async () => {
      const suffix = randomBytes(8).toString("hex");
      for (const name of [`A.b-c_${suffix}`.padEnd(64, "9"), suffix[0]!]) {
        made.push([client, name]);
        await template("x", name, "?overwrite=true");
        await client.expect(204, "DELETE", `/v1/snapshots/${name}`);
      }
    });

    test("a base template's name is reserved, also with overwrite=true, and the capsule keeps running", async () => {
      await using capsule = await client.capsule(small);
      for (const query of ["", "?overwrite=true"]) {
        const { status, json } = await capture(capsule, "minimal", query);
        assert.deepEqual([status, json.error.code], [409, "name_reserved"]);
      }
      assert.equal(await capsule.sh("echo alive"), "alive");
    });

    conforms(
      "POST /v1/snapshots 409 name taken",
      "template name already in use and `overwrite` is not `true`",
      async () => {
        const name = await template("old");
        await using capsule = await client.capsule(small);
        await capsule.sh("echo -n new > /root/content");
        for (const query of ["", "?overwrite=false", "?overwrite=", "?overwrite=TRUE", "?overwrite=1"]) {
          const { status, json } = await capture(capsule, name, query);
          assert.deepEqual([status, json.error.code], [409, "template_name_taken"], query);
        }
        assert.equal(await contentOf(capsule), "new", "unharmed");
        assert.equal((await capture(capsule, name, "?overwrite=true")).status, 201);
        assert.equal((await list("?type=snapshot")).filter((each: { name: string }) => each.name === name).length, 1);
        await using clone = await client.capsule({ template: name });
        assert.equal(await contentOf(clone), "new");
      },
    );

    test("two captures with one name: one 201, one 409 whose capsule keeps running", async () => {
      const name = freshName();
      await using first = await client.capsule(small);
      await using second = await client.capsule(small);
      const both = [first, second];
      await Promise.all(both.map((capsule, i) => capsule.sh(`echo -n ${i} > /root/content`)));
      const replies = await Promise.all(both.map((capsule) => capture(capsule, name)));
      assert.deepEqual(
        replies.map(({ status }) => status).toSorted(),
        [201, 409],
        replies.map(({ text }) => text).join(),
      );
      const loser = replies.findIndex(({ status }) => status === 409);
      assert.equal(replies[loser]!.json.error.code, "template_name_taken");
      assert.equal(await contentOf(both[loser]!), String(loser));
      await client.expect(404, "GET", both[1 - loser]!.path);
      await using clone = await client.capsule({ template: name });
      assert.equal(await contentOf(clone), String(1 - loser));
    });

    test("a template of a capsule that was itself made from a template, and paused and resumed before", async () => {
      await using child = await client.capsule({ template: await template("first") });
      await child.pause();
      await child.resume();
      await child.sh("echo -n -second >> /root/content");
      const name = freshName();
      assert.equal((await capture(child, name)).status, 201);
      await using grandchild = await client.capsule({ template: name });
      assert.equal(await contentOf(grandchild), "first-second");
      await grandchild.pause();
      await grandchild.resume();
      assert.equal(await contentOf(grandchild), "first-second");
    });
  });

  describe("clones", () => {
    test("sixteen capsules of one template share no randomness, machine id, host name or files", async () => {
      const name = await template("shared");
      const clones = await Promise.all(Array.from({ length: 16 }, () => client.capsule({ template: name })));
      try {
        const probes = [
          "head -c 32 /dev/urandom | base64",
          "cat /proc/sys/kernel/random/uuid",
          "cat /etc/machine-id",
          "hostname",
          "python3 -c 'import random, uuid; print(random.random(), uuid.uuid4())'",
          "echo $RANDOM$RANDOM$RANDOM$RANDOM",
        ];
        const told = await Promise.all(
          clones.map(async (clone) => (await clone.sh(probes.join(";"), slow)).split("\n")),
        );
        probes.forEach((probe, i) => {
          const answers = told.map((lines) => lines[i]);
          assert.ok(!answers.includes(undefined) && !answers.includes(""), probe);
          assert.equal(new Set(answers).size, clones.length, `${probe}: ${answers}`);
        });
        for (const lines of told) assert.match(lines[2]!, /^[0-9a-f]{32}$/);
        const named = await Promise.all(clones.map((clone) => clone.sh("cat /etc/hostname", slow)));
        assert.deepEqual(
          named,
          told.map((lines) => lines[3]),
        );
        await Promise.all(clones.map((clone, i) => clone.sh(`echo -n ${i} > /root/content; sync`, slow)));
        assert.deepEqual(await Promise.all(clones.map(contentOf)), [...clones.keys()].map(String));
      } finally {
        await Promise.all(clones.map((clone) => clone[Symbol.asyncDispose]()));
      }
      await using late = await client.capsule({ template: name });
      assert.equal(await contentOf(late), "shared");
    });

    test("capsules of the base template share none of it either", async () => {
      const clones = await Promise.all([client.capsule(), client.capsule()]);
      try {
        for (const probe of [
          "head -c 32 /dev/urandom | base64",
          "cat /proc/sys/kernel/random/uuid",
          "cat /etc/machine-id",
          "hostname",
        ]) {
          const [one, other] = await Promise.all(clones.map((clone) => clone.sh(probe)));
          assert.notEqual(one, other, probe);
        }
      } finally {
        await Promise.all(clones.map((clone) => clone[Symbol.asyncDispose]()));
      }
    });
  });

  describe("delete", () => {
    conforms(
      "DELETE /v1/snapshots/{name} 204",
      "permanently deletes the snapshot template (files and record)",
      async () => {
        const name = await template("doomed");
        const reply = await client.expect(204, "DELETE", `/v1/snapshots/${name}`);
        assert.equal(reply.bytes.length, 0);
        await shown(async () => void (await client.expect(404, "DELETE", `/v1/snapshots/${name}`)));
        assert.ok(!(await list()).some((each: { name: string }) => each.name === name));
        await client.expect(404, "POST", "/v1/capsules", { json: { template: name } });
        await template("reborn", name);
        await using clone = await client.capsule({ template: name });
        assert.equal(await contentOf(clone), "reborn", "the name is free again");
      },
    );

    test("capsules that run from it keep running and can still be paused and resumed", async () => {
      const name = await template("base");
      await using capsule = await client.capsule({ template: name });
      await client.expect(204, "DELETE", `/v1/snapshots/${name}`);
      assert.equal(await contentOf(capsule), "base");
      await capsule.pause();
      await capsule.resume();
      assert.equal(await capsule.sh("sha256sum /usr/bin/git >/dev/null && cat /root/content"), "base");
    });

    const bySelf = ofOneHost("a busy host resumes by its own rows, which are a second behind");
    const resumed = async () => {
      const name = await template("base");
      await using capsule = await client.capsule({ template: name });
      await capsule.pause();
      await client.expect(204, "DELETE", `/v1/snapshots/${name}`);
      const { json } = await client.expect(409, "POST", `${capsule.path}/resume`);
      assert.equal(json.error.code, "conflict");
      assert.ok(json.error.message.includes(name), json.error.message);
      assert.equal((await capsule.view()).status, "paused");
      await template("another", name); // another template of the same name
      await client.expect(409, "POST", `${capsule.path}/resume`);
      await capsule.destroy();
    };
    test("Paused capsules that depend on the deleted snapshot cannot be resumed afterwards", resumed, { skip: bySelf });

    test("capsules paused before their template is overwritten keep the old files and resume", async () => {
      const name = await template("old");
      await using paused = await client.capsule({ template: name });
      await using running = await client.capsule({ template: name });
      await paused.pause();
      await template("new", name, "?overwrite=true");
      await paused.resume();
      for (const capsule of [paused, running]) {
        assert.equal(await contentOf(capsule), "old");
        await capsule.pause();
        await capsule.resume();
        assert.equal(await contentOf(capsule), "old");
      }
      await using fresh = await client.capsule({ template: name });
      assert.equal(await contentOf(fresh), "new");
    });
  });

  describe("scoped to the team", { skip: cannotMakeKeys }, () => {
    test("another team cannot see, use or delete it, and may use the same name", async () => {
      const name = await template("ours");
      const others = await clientOf("other-templates");
      assert.ok(!(await list("", others)).some((each: { name: string }) => each.name === name));
      assert.ok((await list("", others)).some((each: { name: string }) => each.name === "minimal"));
      await others.expect(404, "POST", "/v1/capsules", { json: { template: name } });
      await others.expect(404, "DELETE", `/v1/snapshots/${name}`);
      await using theirs = await others.capsule(small);
      await theirs.sh("echo -n theirs > /root/content");
      made.push([others, name]);
      assert.equal((await capture(theirs, name)).status, 201);
      await using clone = await others.capsule({ template: name });
      assert.equal(await contentOf(clone), "theirs");
      await others.expect(204, "DELETE", `/v1/snapshots/${name}`);
      await using ours = await client.capsule({ template: name });
      assert.equal(await contentOf(ours), "ours");
    });
  });
});
