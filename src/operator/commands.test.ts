import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { dirname, join, relative, resolve } from "node:path";
import { test } from "node:test";
import { inNewDataFolder } from "../../test/data-folder.ts";
import { parse, UsageError } from "../cli/command.ts";
import { commands } from "../cli/commands.ts";
import { operatorCommands } from "./commands.ts";

const program = resolve(import.meta.dirname, "../main.ts");

interface Ended {
  code: number;
  stdout: string;
  stderr: string;
}

function capsule(dataDir: string, ...args: string[]): Promise<Ended> {
  const env = { ...process.env, CAPSULE_DATA: dataDir, CAPSULE_URL: "http://127.0.0.1:2", CAPSULE_API_KEY: "k" };
  return new Promise((resolve) => {
    const child = execFile(process.execPath, [program, ...args], { env, timeout: 120_000 }, (_, stdout, stderr) =>
      resolve({ code: child.exitCode ?? -1, stdout, stderr }),
    );
  });
}

test("an unknown option or argument of any command is a usage error", () => {
  for (const [name, command] of Object.entries({ ...commands, ...operatorCommands })) {
    const [, most] = command.words;
    const lines = [["--nonsense"]];
    if (most < 1_000 && command.rest !== "after-word") lines.push(Array.from({ length: most + 1 }, () => "word"));
    if (command.isLocal && command.options.json === undefined) lines.push(["--json"]);
    for (const line of lines) assert.throws(() => parse(command, line), UsageError, `${name} ${line.join(" ")}`);
  }
});

test("the usage of an operator's command has each of its options", () => {
  for (const [name, { usage, options }] of Object.entries(operatorCommands)) {
    const missing = Object.keys(options).filter(
      (option) => !usage.includes(`--${option}`) && !usage.includes("[OPTIONS]"),
    );
    assert.deepEqual(missing, [], name);
  }
});

test("a usage error of an operator's command exits with 2, and nothing is done", async () => {
  const lines = [
    ["serve", "--nonsense"],
    ["down", "word"],
    ["admin", "backup", "one", "two"],
    ["admin", "keys", "create"],
    ["admin", "keys", "create", "--team", "blue", "word"],
    ["admin", "keys", "list", "--json"],
    ["backup", "one"],
    ["admin", "nonsense"],
    ["admin"],
  ];
  await inNewDataFolder(async (dataDir) => {
    const folder = join(dataDir, "new");
    for (const line of lines) assert.equal((await capsule(folder, ...line)).code, 2, line.join(" "));
    assert.ok(!existsSync(folder));
  });
});

test("down says that there was nothing to stop", async () => {
  await inNewDataFolder(async (dataDir) => {
    for (const folder of [dataDir, join(dataDir, "new")]) {
      const { code, stderr } = await capsule(folder, "down");
      assert.deepEqual([code, stderr], [0, `capsule: no server and no VM of ${folder} runs\n`]);
    }
  });
});

test("a client's command loads nothing of the server", () => {
  const source = dirname(program);
  const reached = new Set<string>();
  const visit = (file: string): void => {
    if (reached.has(file)) return;
    reached.add(file);
    const text = readFileSync(file, "utf8");
    for (const [, target = ""] of text.matchAll(/^(?:import|export) (?!type )[^;]*?from "(\.[^"]+)"/gm))
      visit(resolve(dirname(file), target));
  };
  visit(program);
  const rooms = new Set(
    [...reached].map((file) => relative(source, file)).filter((file) => !/^(cli|sdk|wire)\//.test(file)),
  );
  assert.deepEqual([...rooms].sort(), ["main.ts", "operator/commands.ts"]);
});
