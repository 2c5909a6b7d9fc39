/** The npm package of the SDK: its content, its imports, and the code in its guide. */
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, test } from "node:test";
import * as sdk from "../../src/sdk/sdk.ts";
import { Project, root, run } from "./sdk-package.ts";

const guide = readFileSync(join(root, "docs/SDK.md"), "utf8");

let project: Project;

before(async () => {
  project = await Project.create();
});

after(() => project?.[Symbol.asyncDispose]());

const filesOf = (ending: string) => {
  const names = readdirSync(project.installed, { recursive: true, encoding: "utf8" });
  return names
    .filter((name) => name.endsWith(ending) && name !== "capsule.js")
    .map((name) => ({ name, text: readFileSync(join(project.installed, name), "utf8") }));
};

test("it contains the SDK and two modules of src/wire without imports, and imports only its own files", () => {
  for (const ending of [".js", ".d.ts"]) {
    const files = filesOf(ending);
    assert.ok(files.length > 5);
    for (const { name, text } of files) {
      assert.match(name, /^(sdk\/|wire\/(errors|file-names)\.)/);
      for (const [, target] of text.matchAll(/(?:\bfrom|\bimport|\brequire)\s*\(?\s*"([^"]+)"/g))
        assert.match(target!, /^\.\.?\/.*\.js$/, `${name} imports ${target}`);
    }
  }
  const program = readFileSync(join(project.installed, "capsule.js"), "utf8");
  assert.doesNotMatch(program, /fastify|qemu|node:sqlite|typebox/, "the command line comes without the server");
  const about = JSON.parse(readFileSync(join(project.installed, "package.json"), "utf8"));
  assert.equal(about.dependencies, undefined);
  assert.deepEqual(about.exports["."], { types: about.types, default: about.main });
});

test("beside the code it has its guide, its program and the text of the licence that it names", () => {
  const isCode = (name: string) => /^(sdk|wire)(\/|$)/.test(name);
  const files = readdirSync(project.installed, { recursive: true, encoding: "utf8" }).filter((name) => !isCode(name));
  assert.deepEqual(files.sort(), ["LICENSE", "README.md", "capsule.js", "package.json"]);
  const license = readFileSync(join(project.installed, "LICENSE"), "utf8");
  assert.equal(license, readFileSync(join(root, "LICENSE"), "utf8"));
  assert.match(license, /^\s+Apache License\s+Version 2\.0, January 2004\n.*END OF TERMS AND CONDITIONS/s);
  for (const about of [join(root, "package.json"), join(project.installed, "package.json")])
    assert.equal(JSON.parse(readFileSync(about, "utf8")).license, "Apache-2.0");
});

test("the guide's code compiles in strict mode, in a project with only this package", async () => {
  const blocks = [...guide.matchAll(/```ts\n([\s\S]*?)```/g)].map(([, code]) => code!);
  assert.ok(blocks.length > 8);
  const before: Record<string, string> = {
    Client: 'import { Client } from "capsule-sdk";',
    client: 'declare const client: import("capsule-sdk").Client;',
    capsule: 'declare const capsule: import("capsule-sdk").Capsule;',
    pty: 'declare const pty: import("capsule-sdk").Pty;',
  };
  for (const [at, block] of blocks.entries()) {
    const isOwn = (name: string) => new RegExp(`(const|using|import \\{[^}]*) ${name}\\b`).test(block);
    const given = Object.keys(before).filter((name) => !isOwn(name));
    const code = [...given.map((name) => before[name]), block, "export {};"].join("\n");
    await writeFile(join(project.folder, `block-${at}.ts`), code);
  }
  const language = ["--target", "esnext", "--module", "nodenext", "--lib", "esnext,dom,dom.iterable", "--types", ""];
  const strictness = ["--strict", "--exactOptionalPropertyTypes", "--skipLibCheck", "false"];
  const files = readdirSync(project.folder).filter((name) => name.endsWith(".ts"));
  const compiler = join(root, "node_modules/typescript/bin/tsc");
  const args = [compiler, "--noEmit", ...language, ...strictness, ...files];
  await run(process.execPath, args, { cwd: project.folder }).catch(({ stdout }) => assert.fail(stdout));
});

test("the guide names every public method", () => {
  const declared = filesOf(".d.ts")
    .map(({ text }) => text)
    .join("\n");
  const { Capsule, Client, Templates, Keys, Files, BackgroundProcess, OutputStream, Pty } = sdk;
  for (const each of [Capsule, Client, Templates, Keys, Files, BackgroundProcess, OutputStream, Pty]) {
    const names = [...Object.getOwnPropertyNames(each.prototype), ...Object.getOwnPropertyNames(each)];
    const isPublic = (name: string) => new RegExp(`^ {4}(static )?${name}\\(`, "m").test(declared);
    const methods = names.filter((name) => isPublic(name) && !["constructor", "toJSON"].includes(name));
    assert.ok(methods.length > 0, each.name);
    for (const method of methods)
      assert.match(guide, new RegExp(`\\b${method}\\b`), `${each.name}.${method} is not in docs/SDK.md`);
  }
  for (const name of ["ConnectionError", "ServiceError", "hasCode"])
    assert.ok(guide.includes(name) && name in sdk, name);
});
