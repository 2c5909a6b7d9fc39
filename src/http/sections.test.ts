import assert from "node:assert/strict";
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import type { RouteOptions } from "fastify";
import { Api } from "../../test/api.ts";
import type { AuditAction } from "../wire/audit.ts";
import { sections } from "./sections.ts";

/** The sections that the files of a folder export, by file. */
async function sectionsIn(folder: string): Promise<Map<string, unknown[]>> {
  const path = join(import.meta.dirname, folder);
  const files = readdirSync(path, { encoding: "utf8", recursive: true }).filter(
    (name) => name.endsWith(".ts") && !name.endsWith(".test.ts"),
  );
  const found = files.map(async (name): Promise<[string, unknown[]]> => {
    const exported = Object.entries(await import(join(path, name)));
    return [`${folder}/${name}`, exported.filter(([each]) => each.endsWith("Section")).map(([, section]) => section)];
  });
  return new Map(await Promise.all(found));
}

test("each file of routes has a section, and each section is served", async () => {
  const inRoutes = await sectionsIn("routes");
  const declared = [...inRoutes.values(), ...(await sectionsIn("sockets")).values()].flat();
  const empty = [...inRoutes].filter(([, found]) => found.length === 0).map(([name]) => name);
  assert.deepEqual(empty, []);
  assert.deepEqual(new Set(declared), new Set(sections));
  assert.equal(declared.length, sections.length);
});

test("a section stands in its chapter of the document", async () => {
  const { json } = await new Api().call("GET", "/openapi.json");
  const chapterOf = (path: string, method = "get") => json.paths[path][method].tags;
  const names = json.tags.map(({ name }: { name: string }) => name);
  assert.deepEqual(names, ["Capsules", "Execution", "Files", "Ports", "Templates", "Keys", "Service"]);
  assert.deepEqual(chapterOf("/v1/capsules/{id}"), ["Capsules"]);
  assert.deepEqual(chapterOf("/v1/capsules/{id}/pty"), ["Execution"]);
  assert.deepEqual(chapterOf("/v1/capsules/{id}/processes/{selector}/exit"), ["Execution"]);
  assert.deepEqual(chapterOf("/v1/capsules/{id}/files/stream/write", "post"), ["Files"]);
  assert.deepEqual(chapterOf("/v1/capsules/{id}/ports/{port}/tcp"), ["Ports"]);
  assert.deepEqual(chapterOf("/v1/snapshots"), ["Templates"]);
  assert.deepEqual(chapterOf("/v1/session"), ["Keys"]);
  assert.deepEqual(chapterOf("/openapi.json"), ["Service"]);
});

test("routes declare which audit entries are on disk before the answer, and which are of reads", async () => {
  const { app } = new Api();
  const durable = new Set<AuditAction>();
  const reads = new Set<AuditAction>();
  app.addHook("onRoute", ({ config }: RouteOptions) => {
    if (config?.audit?.durable === true) durable.add(config.audit.action);
    if (config?.audit?.read === true) reads.add(config.audit.action);
  });
  await app.ready();
  assert.deepEqual([...durable].sort(), [
    ...["capsule.create", "capsule.destroy", "capsule.pause", "capsule.resume", "capsule.start", "capsule.stop"],
    "capsule.update",
    ...["key.create", "key.revoke", "network.update", "port.revoke"],
    ...["sign-in", "sign-in-link.create", "template.create", "template.delete"],
  ]);
  assert.deepEqual([...reads].sort(), [
    "file.archive",
    "file.list",
    "file.read",
    "port.list",
    "process.list",
    "process.logs",
  ]);
});
