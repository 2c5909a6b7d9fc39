/** Another user in front of root's data folder: every command says whose it is, and nothing else. */
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { chmodSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { after, describe, test } from "node:test";

const skip = process.getuid?.() !== 0 && "needs root to become another user";
const nobody = 65_534;
const folder = mkdtempSync(join(tmpdir(), "capsule-foreign-"));
after(() => rmSync(folder, { recursive: true }));

/** The program loads its code as root, and runs the command as nobody: the clone may be one that only root can read. */
const source = resolve(import.meta.dirname, "..");
const asNobody = `
  const load = (path) => import(${JSON.stringify(source)} + path);
  const { runProgram } = await load("/cli/cli.ts");
  const { commands } = await load("/cli/commands.ts");
  const { operatorCommands } = await load("/operator/commands.ts");
  for (const path of ["serve", "down", "doctor", "keys", "backup"]) await load(\`/operator/\${path}.ts\`);
  await load("/cli/capsules.ts");
  process.setgroups([]); process.setgid(${nobody}); process.setuid(${nobody});
  const program = { commands: { ...commands, ...operatorCommands }, footer: "" };
  process.exit(await runProgram(program, process.argv.slice(1)));
`;

function capsule(dataDir: string, args: string[]): Promise<{ code: number; stdout: string; stderr: string }> {
  const { CAPSULE_URL: _, CAPSULE_API_KEY: __, ...env } = process.env;
  const line = ["--input-type=module", "--eval", asNobody, "--", ...args];
  return new Promise((resolve) => {
    const options = { env: { ...env, CAPSULE_DATA: dataDir }, timeout: 60_000, cwd: "/" };
    const child = execFile(process.execPath, line, options, (_, stdout, stderr) =>
      resolve({ code: child.exitCode ?? -1, stdout, stderr }),
    );
  });
}

describe("another user in front of root's data folder", { skip }, () => {
  const dataDir = join(folder, "data");
  mkdirSync(dataDir);
  writeFileSync(join(dataDir, "api-key"), "capk_secret\n", { mode: 0o600 });
  chmodSync(folder, 0o755);
  chmodSync(dataDir, 0o700);
  const whose = `${dataDir} belongs to root, and this user may not use it`;

  test("a client's command names the owner, and not a file that is there", async () => {
    const { code, stderr } = await capsule(dataDir, ["create"]);
    assert.equal(code, 1);
    assert.equal(stderr, `capsule create: ${whose}\n  Use sudo, or set CAPSULE_URL and CAPSULE_API_KEY.\n`);
  });

  test("so do the operator's commands", async () => {
    const lines = ["serve", "admin keys list", `admin backup ${folder}/copy`];
    for (const line of lines) {
      const { code, stderr } = await capsule(dataDir, line.split(" "));
      assert.equal(code, 1, line);
      assert.match(stderr, new RegExp(`^capsule [a-z ]+: ${whose}\n {2}Use sudo\\.\n$`), line);
    }
  });

  test("doctor says it in one line, and does not say that an image is missing", async () => {
    const { code, stdout } = await capsule(dataDir, ["doctor"]);
    assert.equal(code, 1);
    assert.match(stdout, new RegExp(`^missing +data +${whose}: use sudo$`, "m"));
    assert.doesNotMatch(stdout, /image/);
    assert.match(stdout, new RegExp(`\nThe service cannot run here yet: .*${whose}: use sudo`));
  });
});
