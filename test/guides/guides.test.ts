/**
 * The documents' examples, run as they stand: shell blocks of a document as one script each, TypeScript blocks as one
 * program each, against one real server. An example that cannot run here says so in its fence: ```sh no-run
 *
 * The pages of a first visit run in a clone whose server is up, with the programs of PATH and without a variable of
 * Capsule's; the other pages have address, key and data folder in the environment.
 */
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, join, resolve } from "node:path";
import { after, before, describe, test } from "node:test";
import { promisify } from "node:util";
import { build, pack } from "../../sdk/build.ts";
import { Client } from "../client.ts";
import { Server } from "../server.ts";

const repository = resolve(import.meta.dirname, "../..");
const sdk = join(repository, "src/sdk/sdk.ts");
const timeout = 600_000;

/** The lines that each example prints, in this order among other things. */
const printed: Record<string, string[][]> = {
  "README.md": [["42"]],
  "docs/QUICKSTART.md": [["42", "from a file"], ["0 42", "remember the milk"], ["0 42"], ["Linux"], ["http"]],
  "docs/CONCEPTS.md": [],
  "docs/guides/agent-sandboxes.md": [["exit code 0", "42"]],
  "docs/guides/long-running-jobs.md": [
    ["job", "step 1", "step 2", "step 3"],
    ["stdout line 1", "line 3", "ended with 0", "job ended with 3"], // the lines may come in one piece
  ],
  "docs/guides/network.md": [["example.com has no address", "No route to host"], ["open for business"], ["cl-", "401"]],
  "docs/guides/recipes.md": [
    ["[exit code 0]", "one", "[exit code 1]"],
    ["cell: \n", "cell: 42", "cell: NameError"],
    ["passed, failed"],
  ],
  "docs/guides/software.md": [["12", "Python 3"], ["hello, capsule"], ["from an archive"], ["from the template"]],
  "docs/guides/templates.md": [["ready", "ready", "tools"], ["144"]],
  "docs/guides/web-terminals.md": [[]],
};

const firstPages = ["README.md", "docs/QUICKSTART.md"];

interface Example {
  language: string;
  code: string;
}

function examplesOf(document: string): Example[] {
  const text = readFileSync(join(repository, document), "utf8");
  return [...text.matchAll(/^```(sh|ts)( no-run)?\n(.*?)^```$/gms)]
    .filter(([, , noRun]) => noRun === undefined)
    .map(([, language = "", , code = ""]) => ({ language, code }));
}

function guides(): string[] {
  return readdirSync(join(repository, "docs/guides")).map((name) => `docs/guides/${name}`);
}

describe("the documents' examples", () => {
  let server: Server;
  let folder: string;
  before(async () => {
    folder = mkdtempSync(join(tmpdir(), "capsule-guides-"));
    const web = join(folder, "web");
    mkdirSync(web);
    build(join(folder, "sdk"));
    pack(join(folder, "sdk"), join(web, "sdk.tgz"));
    server = await Server.start({ env: { CAPSULE_WEB: web } });
  });
  after(async () => {
    await server[Symbol.asyncDispose]();
    rmSync(folder, { recursive: true });
  });

  test("every guide is among them", () => {
    assert.deepEqual(
      guides().filter((document) => !(document in printed)),
      [],
    );
  });

  for (const [document, expectations] of Object.entries(printed)) {
    const examples = examplesOf(document);
    test(`${document} has the examples that are expected of it`, () =>
      assert.equal(examples.length, expectations.length));
    for (const [index, { language, code }] of examples.entries()) {
      test(`${document}, example ${index + 1} (${language})`, { timeout }, async () => {
        const name = join(folder, `${document.replaceAll("/", "-")}-${index}`);
        const output = firstPages.includes(document)
          ? await runInClone(code, name)
          : await run(language, code, `${name}.ts`);
        let at = 0;
        for (const expected of expectations[index] ?? []) {
          const found = output.indexOf(expected, at);
          assert.notEqual(
            found,
            -1,
            `${JSON.stringify(expected)} is not in, or not after what comes before it:\n${output}`,
          );
          at = found + expected.length;
        }
      });
    }
  }

  test("they leave nothing behind", async () => {
    const client = await Client.connect(server.url, server.apiKey);
    assert.deepEqual((await client.expect(200, "GET", "/v1/capsules")).json, []);
    assert.deepEqual((await client.expect(200, "GET", "/v1/snapshots?type=snapshot")).json, []);
    client.close();
  });

  async function runInClone(code: string, clone: string): Promise<string> {
    const kept = new Set(["node_modules", ".git", ".capsule", "target"]);
    cpSync(repository, clone, { recursive: true, filter: (path) => !kept.has(basename(path)) });
    symlinkSync(join(repository, "node_modules"), join(clone, "node_modules"));
    symlinkSync(server.dataDir, join(clone, ".capsule"));
    const bundled = join(repository, "node_modules");
    const path = process.env.PATH?.split(":").filter((each) => !each.startsWith(bundled));
    const env = { HOME: clone, PATH: path?.join(":") };
    const { stdout } = await promisify(execFile)("bash", ["-euo", "pipefail", "-c", code], {
      cwd: clone,
      env,
      timeout,
    });
    return stdout;
  }

  /** Resolves with what it printed; throws with that when it fails. */
  async function run(language: string, code: string, file: string): Promise<string> {
    const env = {
      ...process.env,
      CAPSULE_URL: server.url,
      CAPSULE_API_KEY: server.apiKey,
      CAPSULE_DATA: server.dataDir,
    };
    if (language === "ts") writeFileSync(file, code.replaceAll('"capsule-sdk"', JSON.stringify(sdk)));
    const [program, args] = language === "ts" ? [process.execPath, [file]] : ["bash", ["-euo", "pipefail", "-c", code]];
    const { stdout } = await promisify(execFile)(program, args, { cwd: repository, env, timeout });
    return stdout;
  }
});
