/** `capsule exec` at the real HTTP layer: the code it exits with, and the advice that it gives. */
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { test } from "node:test";
import { Api } from "../../test/api.ts";
import { lineTo } from "../../test/cli/api-line.ts";
import { program } from "../../test/cli/command-line.ts";
import { waitFor } from "../../test/wait-for.ts";

const api = new Api();
const line = lineTo(api);

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

test("standard input is passed on to its end, and not where it is /dev/null or in the background", async () => {
  const id = await api.capsule();
  const agent = api.agent(id);
  agent.onRun = async (run) => {
    if (run.command.stdin) await waitFor("the end of its input", () => run.hasInputEnded);
    run.exit(run.input.length);
  };
  const bytes = Buffer.from([0, 255, 10]);
  for (const flags of [[], ["-i"], ["--json"]]) {
    const { code, stderr } = await line.run(["exec", ...flags, id, "hang"], { input: bytes });
    assert.equal(code, 1, stderr);
    assert.deepEqual(agent.runs.at(-1)?.input, [bytes]);
    assert.equal((await line.run(["exec", ...flags, id, "hang"])).code, 0);
    assert.deepEqual([agent.runs.at(-1)?.command.stdin, agent.runs.at(-1)?.input], [true, []]);
  }
  const withNull = async (...flags: string[]) => {
    const child = spawn(program, ["exec", ...flags, id, "hang"], {
      env: line.env,
      stdio: ["ignore", "ignore", "inherit"],
    });
    assert.deepEqual(await once(child, "close"), [0, null]);
    return agent.runs.at(-1)?.command.stdin;
  };
  assert.deepEqual([await withNull(), await withNull("--json"), await withNull("-i")], [undefined, undefined, true]);
  assert.equal((await line.run(["exec", "--background", id, "true"], { input: bytes })).code, 0);
  assert.equal(agent.started[0]?.stdin, undefined);
});

test("standard input that stays open does not hold up the end", async () => {
  const id = await api.capsule();
  const child = line.start(["exec", id, "true"]);
  assert.deepEqual(await once(child, "close"), [0, null]);
});

test("-i and -t are wrong with --background, -t with --json", async () => {
  const id = await api.capsule();
  for (const flags of [["-b", "-i"], ["-b", "-t"], ["-bit"], ["-t", "--json"]])
    assert.equal((await line.run(["exec", ...flags, id, "true"])).code, 2, flags.join(" "));
});
