/** The look at resolv.conf every two seconds, on files of the test. */
import assert from "node:assert/strict";
import { mkdtempSync, renameSync, rmSync, symlinkSync, unlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type TestContext, test } from "node:test";
import { waitFor } from "../../test/wait-for.ts";
import { watchResolvers } from "./resolv-conf.ts";

const conf = (...addresses: string[]) => addresses.map((each) => `nameserver ${each}\n`).join("");

function watched(t: TestContext, text: string | undefined) {
  const folder = mkdtempSync(join(tmpdir(), "resolv-conf-"));
  const path = join(folder, "resolv.conf");
  if (text !== undefined) writeFileSync(path, text);
  t.mock.timers.enable({ apis: ["setInterval"] });
  const told: string[] = [];
  const watch = watchResolvers((resolvers) => void told.push(resolvers.join()), path);
  t.after(() => {
    watch.close();
    rmSync(folder, { recursive: true });
  });
  /** Looks until there was a call more. */
  const changed = async (resolvers: string) => {
    const before = told.length;
    await waitFor(`${resolvers} is told`, () => {
      t.mock.timers.tick(2_000);
      return told.length > before;
    });
    assert.deepEqual(told.slice(before), [resolvers]);
  };
  return { folder, path, told, watch, changed };
}

test("resolvers are told when the file is written, replaced, removed, and back", async (t) => {
  const { folder, path, watch, changed } = watched(t, conf("10.0.0.1"));
  assert.deepEqual(watch.resolvers, ["10.0.0.1"]);
  writeFileSync(path, conf("10.0.0.2", "10.0.0.3"));
  await changed("10.0.0.2,10.0.0.3");
  writeFileSync(join(folder, "new"), conf("10.0.0.4"));
  renameSync(join(folder, "new"), path);
  await changed("10.0.0.4");
  unlinkSync(path);
  await changed("");
  writeFileSync(path, conf("10.0.0.4"));
  await changed("10.0.0.4");
});

test("a link is followed, as systemd has one", async (t) => {
  const { folder, path, watch, changed } = watched(t, undefined);
  assert.deepEqual(watch.resolvers, []);
  writeFileSync(join(folder, "stub"), conf("127.0.0.53"));
  symlinkSync(join(folder, "stub"), path);
  await changed("127.0.0.53");
  writeFileSync(join(folder, "stub"), conf("127.0.0.54"));
  await changed("127.0.0.54");
});

test("the same resolvers are not told again, and none after the end", async (t) => {
  const { path, told, watch, changed } = watched(t, conf("10.0.0.1"));
  writeFileSync(path, `# written anew\n${conf("10.0.0.1")}`);
  writeFileSync(path, `# and again\n${conf("10.0.0.1")}options edns0\n`);
  for (let looks = 0; looks < 5; looks++) {
    t.mock.timers.tick(2_000);
    await new Promise(setImmediate);
  }
  writeFileSync(path, conf("10.0.0.2"));
  await changed("10.0.0.2");
  assert.equal(told.length, 1);
  watch.close();
  writeFileSync(path, conf("10.0.0.3"));
  t.mock.timers.tick(10_000);
  await new Promise(setImmediate);
  assert.equal(told.length, 1);
});
