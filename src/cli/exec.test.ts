/** `capsule exec` at the real HTTP layer: the code it exits with, and the advice that it gives. */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Api, keys } from "../../test/api.ts";
import { CommandLine } from "../../test/cli/command-line.ts";

const api = new Api();
let line: CommandLine;
before(async () => {
  const url = await api.app.listen({ host: "127.0.0.1", port: 0 });
  line = new CommandLine({ CAPSULE_URL: url, CAPSULE_API_KEY: keys.red });
});
after(() => api.app.close());

for (const [cmd, why] of [
  ["nope", "command not found"],
  ["locked", "Permission denied"],
] as const) {
  test(`a command that does not run (${why}) is 127, however it is asked for`, async () => {
    const id = await api.capsule();
    for (const flags of [[], ["--json"], ["--background"], ["--background", "--json"]]) {
      const { code, stdout, stderr } = await line.run(["exec", ...flags, id, cmd]);
      assert.equal(code, 127, `${flags.join(" ")}: ${stderr}`);
      assert.match(stdout + stderr, new RegExp(`${cmd}: ${why}`));
    }
  });
}
