/** The image dev, where it is built: its build takes minutes and the network. Capsules have no network. */
import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { Client, type TestCapsule } from "../client.ts";
import { Server } from "../server.ts";

const images = process.env.CAPSULE_IMAGES_FROM ?? join(import.meta.dirname, "../../.capsule/images");
const skip = !existsSync(join(images, "dev/current")) && "the image dev is not built; ./dev image dev builds it";
/** Deadline of a command. Under emulation a call of npm takes some seconds, on a busy machine a minute. */
const timeoutSec = 300;

const commands: [command: string, pattern: RegExp][] = [
  ["node --version", /^v24\./],
  ["node --eval 'console.log(6 * 7)'", /^42$/],
  ["npm --version", /^11\./],
  ["sqlite3 :memory: 'select 6 * 7'", /^42$/],
  ["python --version", /^Python 3\./],
  ["sudo -n id -u", /^0$/],
  [
    `set -e; cd; echo 'int puts(const char *); int main(void) { return puts("42") < 0; }' > a.c
     printf 'a: a.c\\n\\tgcc -o a a.c\\n' > Makefile; make --silent; ./a`,
    /^42$/,
  ],
  [
    `set -e; cd; mkdir made app; echo 'module.exports = 42' > made/index.js
     echo '{"name": "made", "version": "1.0.0"}' > made/package.json; tar -czf made.tgz made
     cd app; npm install --silent ../made.tgz; node --print 'require("made")'`,
    /^42$/,
  ],
];

test("the image dev is a base template, whose capsules have its programs", { skip, timeout: 900_000 }, async (t) => {
  await using server = await Server.start({ env: { CAPSULE_POOL: "off", CAPSULE_WARM_PROCESSES: "0" } });
  const client = await Client.connect(server.url, server.apiKey);
  t.after(() => client.close());
  const { json: templates } = await client.expect(200, "GET", "/v1/snapshots?type=base");
  const names = templates.map(({ name }: { name: string }) => name);
  assert.deepEqual([names[0], names.includes("dev")], ["minimal", true]);
  await using capsule = await client.capsule({ template: "dev" });
  for (const user of ["root", "user"]) {
    for (const [command, pattern] of commands) assert.match(await output(capsule, user, command), pattern, command);
  }
});

async function output(capsule: TestCapsule, user: string, script: string): Promise<string> {
  const { stdout, stderr, exit_code } = await capsule.run("bash", ["-c", script], { user, timeout_sec: timeoutSec });
  assert.equal(exit_code, 0, `${script} as ${user}: ${stdout}${stderr}`);
  return stdout.trimEnd();
}
